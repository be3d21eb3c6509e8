"""A grammar that is slow, or has met a limit, delays nobody and ends at most its own request."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from driving import Answer, drive, sizes
from spelling_tokenizer import EOS, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine import GRAMMAR_FAILED, Engine, Request
from eagle3_jax.engine.grammars import masking
from eagle3_jax.engine.grammars.interface import reject_from
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.token_mask import open_masks

pytest.importorskip("llguidance")
from eagle3_jax.engine.grammars import llguidance_grammars
from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceMatcher

fill = LLGuidanceMatcher.fill
LISTS = StructuredOutputs(grammar='start: "[" item ("," item){0,9} "]"\nitem: /[a-e]+/')
TREE = {"eagle_topk": 3, "num_draft_tokens": 9}
NO_MASK_YET = 60.0
"""Seconds no test takes, but for one in which somebody waits for who must not."""


def asked(name: str, form: StructuredOutputs | None, tokens: int = 20, least: int = 0) -> Request:
    sampling = SamplingParams(seed=7, max_tokens=tokens, min_tokens=least, structured_outputs=form)
    return Request(name, [3, 1, 4, 1, 5], sampling)


def ready(target: Target, draft: Eagle3Draft, **options: Any) -> Engine:
    config = sizes(3, **options)
    return Engine(target, draft, config, tokenizer=SpellingTokenizer(), eos_token_ids=(EOS,))


@pytest.fixture(scope="module")
def engine(target: Target, draft: Eagle3Draft) -> Engine:
    return ready(target, draft)


@pytest.fixture(scope="module", params=[{}, TREE], ids=["chain", "tree"])
def drafting(request: pytest.FixtureRequest, target: Target, draft: Eagle3Draft) -> Engine:
    return ready(target, draft, **request.param)


@pytest.fixture(scope="module")
def alone(engine: Engine) -> dict[str, Answer]:
    """What each is answered when no mask is late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking, "WAIT_S", NO_MASK_YET)
        return {
            name: drive(engine, [asked(name, form)])[name]
            for name, form in {"list": LISTS, "free": None}.items()
        }


def test_nobody_waits_for_a_mask_that_does_not_come(
    engine: Engine, alone: dict[str, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask in the middle of one answer comes when its neighbour's answer is there."""
    neighbour_done, waited, count = threading.Event(), list[bool](), iter(range(10**6))

    def slow_fill(self: Any, masks: np.ndarray, drafts: Any) -> list[int]:
        if next(count) == 3:
            waited.append(neighbour_done.wait(NO_MASK_YET))
        return fill(self, masks, drafts)

    monkeypatch.setattr(LLGuidanceMatcher, "fill", slow_fill)
    engine.add(asked("list", LISTS))
    engine.add(asked("free", None))
    ended: list[str] = []
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason is not None:
                ended.append(output.request_id)
                neighbour_done.set()
    assert ended == ["free", "list"] and waited == [True]


@pytest.mark.parametrize("wait_s", [0.0, 0.002])
def test_masks_that_are_late_change_no_token(
    drafting: Engine, alone: dict[str, Answer], monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """Nor does it matter when: of most fills here one part is late, with no wait all are."""
    monkeypatch.setattr(masking, "WAIT_S", wait_s)
    monkeypatch.setattr(LLGuidanceMatcher, "fill", _after_a_while)
    answers = drive(drafting, [asked("list", LISTS), asked("free", None)])
    assert {n: (a.token_ids, a.finish) for n, a in answers.items()} == {
        n: (a.token_ids, a.finish) for n, a in alone.items()
    }


def _after_a_while(self: Any, masks: np.ndarray, drafts: Any) -> list[int]:
    threading.Event().wait(0.001)
    return fill(self, masks, drafts)


def test_a_grammar_that_meets_a_limit_ends_its_own_request_alone(
    target: Target,
    draft: Eagle3Draft,
    alone: dict[str, Answer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {**llguidance_grammars.LIMITS, "max_items_in_row": 20}
    monkeypatch.setattr(llguidance_grammars, "LIMITS", limits)
    engine = ready(target, draft)
    ambiguous = StructuredOutputs(grammar='start: e\ne: e e | "a" "b"')
    requests = [asked("list", LISTS), asked("stuck", ambiguous, 90, 89), asked("free", None)]
    answers = drive(engine, requests)
    reason, said = answers.pop("stuck").finish
    assert reason == "error" and f"{said}".startswith(GRAMMAR_FAILED) and "items" in f"{said}"
    assert {n: a.token_ids for n, a in answers.items()} == {
        n: a.token_ids for n, a in alone.items()
    }
    assert engine.grammars and engine.grammars.known(LISTS), "others are kept"
    assert engine.grammars.known(ambiguous) is None, "its lexer is worn"


def test_a_mask_that_never_comes_ends_its_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = threading.Event()
    monkeypatch.setattr(masking, "MOST_S", 0.05)
    monkeypatch.setattr(LLGuidanceMatcher, "fill", lambda *_: forever.wait(NO_MASK_YET))
    finish = drive(engine, [asked("list", LISTS), asked("free", None)])["list"].finish
    forever.set()
    assert finish[0] == "error" and f"{finish[1]}".startswith(GRAMMAR_FAILED)
    assert not engine.has_work and engine.stats().free_pages == engine.stats().total_pages


def test_stuck_threads_are_replaced_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Stuck:
        def fill(self, masks: np.ndarray, drafts: Any) -> list[int]:
            release.wait(NO_MASK_YET)
            return []

    threads = masking.MaskThreads(2)
    before = threading.active_count()
    stuck: Any = Stuck()
    jobs = [masking.MaskJob(masking.Asked(stuck), open_masks(VOCAB, 1)) for _ in range(6)]
    for job in jobs:
        threads.submit(job)
    while any(job.began is None for job in jobs):
        for job in jobs:
            threads.detach(job)
    assert threading.active_count() > before + 2
    release.set()
    assert all(job.done.wait(NO_MASK_YET) for job in jobs)
    while threading.active_count() > before + 2:
        threading.Event().wait(0.01)


def test_a_rejected_draft_is_one_that_the_mask_bars() -> None:
    masks = open_masks(VOCAB, 2)
    masks[0, 1] &= ~np.uint32(1 << 7)
    assert reject_from(0, masks, [5, 6]) == [39, 6]
    assert reject_from(1, masks, [5, 6]) == [5, 6], "a mask that bars nothing rejects nothing"


class _Open:
    """A matcher that allows everything."""

    terminated = False
    free_tokens = 0.0

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        return list(draft_ids)

    def commit(self, token: int) -> None: ...

    def restart(self) -> None: ...


def test_a_mask_that_came_ends_no_request_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(_Open):
        def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
            asked.wait(NO_MASK_YET)
            return list(draft_ids)

    asked, masks, matcher = threading.Event(), masking.Masking(VOCAB), Late()
    assert not masks.next_masks([matcher])
    asked.set()
    monkeypatch.setattr(masking, "WAIT_S", NO_MASK_YET)
    masks.begin_step()
    masks.wait()
    monkeypatch.setattr(masking, "MOST_S", 0.0)
    assert not masks.failures()
    assert [*masks.next_masks([matcher])] == [matcher]


def test_engines_come_and_go_without_leaving_threads_behind() -> None:
    def threads() -> int:
        for _ in range(4):
            masks, matcher = masking.Masking(VOCAB), _Open()
            masks.begin_step()
            assert masks.next_masks([matcher])
        return sum(thread.name == "masks" for thread in threading.enumerate())

    assert threads() == threads()


def test_without_drafts_a_late_mask_has_none_to_reject() -> None:
    assert reject_from(0, np.array([[16384]], np.uint32), []) == []
