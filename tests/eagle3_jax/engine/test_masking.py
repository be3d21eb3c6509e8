"""A grammar that is slow, or has met a limit, delays nobody and ends at most its own request.

Engines run on the simulated device, with a grammar that a test makes slow or lets fail.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from driving import Answer, drive, sizes
from simulated_device import VOCAB, next_token, simulated_engine

from eagle3_jax.engine import GRAMMAR_FAILED, Engine, Request
from eagle3_jax.engine import engine as engine_module
from eagle3_jax.engine.grammars import masking
from eagle3_jax.engine.grammars.interface import GrammarFailedError, reject_from
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.token_mask import open_masks

NO_MASK_YET = 60.0
"""Seconds no test takes, but for one in which somebody waits for who must not."""
PROMPT, MOST, SEED = [3, 1, 4, 1, 5], 30, 7


def allowed(step: int) -> list[int]:
    """The tokens that the form of these tests allows as its `step`-th."""
    return [(3 * step + i) % VOCAB for i in range(6)]


@dataclass(eq=False)
class Form:
    """A grammar and its one matcher: of each step some tokens may come, once `begin` returns."""

    begin: Callable[["Form"], object] = bool
    committed: list[int] = field(default_factory=list)
    terminated = False
    free_tokens = 0.0

    def start(self) -> "Form":
        return self

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        self.begin(self)
        for row, mask in enumerate(masks):
            tokens = allowed(len(self.committed) + row)
            mask[:] = sum(1 << token for token in tokens)
            if row < len(draft_ids) and draft_ids[row] not in tokens:
                break
        return list(draft_ids)

    def commit(self, token: int) -> None:
        self.committed.append(token)

    def restart(self) -> None:
        self.committed.clear()


def asked(name: str, form: Form | None) -> Request:
    constraint: Any = StructuredOutputs(regex="a") if form else None
    sampling = SamplingParams(seed=SEED, max_tokens=MOST, structured_outputs=constraint)
    return Request(name, PROMPT, sampling, grammar=form)


def plain(constrained: bool) -> list[int]:
    """The answer by the rules, one token at a time."""
    answer: list[int] = []
    while len(answer) < MOST:
        others = {*range(VOCAB)} - {*allowed(len(answer))} if constrained else ()
        answer.append(next_token([*PROMPT, *answer], SEED, sorted(others)))
    return answer


def assert_plain(answers: dict[str, Answer]) -> None:
    for name, answer in answers.items():
        assert answer.token_ids == plain(name == "form"), name


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(engine_module, "load_grammars", lambda *_: object())
    monkeypatch.setattr(masking, "WAIT_S", NO_MASK_YET)
    return simulated_engine(monkeypatch, sizes(3))


def test_nobody_waits_for_a_mask_that_does_not_come(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask in the middle of one answer comes when its neighbour's answer is there."""
    neighbour_done, waited, count = threading.Event(), list[bool](), iter(range(10**6))

    def third_is_slow(form: Form) -> None:
        if next(count) == 3:
            waited.append(neighbour_done.wait(NO_MASK_YET))

    monkeypatch.setattr(masking, "WAIT_S", 0.04)
    engine.add(asked("form", Form(third_is_slow)))
    engine.add(asked("free", None))
    ended: list[str] = []
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason is not None:
                ended.append(output.request_id)
                neighbour_done.set()
    assert ended == ["free", "form"] and waited == [True]


@pytest.mark.parametrize("wait_s", [NO_MASK_YET, 0.002, 0.0])
def test_masks_that_are_late_change_no_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """Nor does it matter when: of most fills here one part is late, with no wait all are."""
    late = Form(lambda _: threading.Event().wait(0.001))
    monkeypatch.setattr(masking, "WAIT_S", wait_s)
    assert_plain(drive(engine, [asked("form", late), asked("free", None)]))
    if wait_s == NO_MASK_YET:
        assert engine.stats().num_accepted_tokens > 0


def test_a_grammar_that_meets_a_limit_ends_its_own_request_alone(engine: Engine) -> None:
    def limited(form: Form) -> None:
        if len(form.committed) > 5:
            raise GrammarFailedError("too many items")

    requests = [asked("form", Form()), asked("stuck", Form(limited)), asked("free", None)]
    answers = drive(engine, requests)
    stuck = answers.pop("stuck")
    assert stuck.finish == ("error", f"{GRAMMAR_FAILED}: too many items")
    assert stuck.token_ids == plain(True)[: len(stuck.token_ids)]
    assert_plain(answers)


def test_a_mask_that_never_comes_ends_its_request(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = threading.Event()
    stuck = Form(lambda _: forever.wait(NO_MASK_YET))
    monkeypatch.setattr(masking, "WAIT_S", 0.0)
    monkeypatch.setattr(masking, "MOST_S", 0.05)
    answers = drive(engine, [asked("stuck", stuck), asked("free", None)])
    forever.set()
    finish = answers.pop("stuck").finish
    assert finish[0] == "error" and f"{finish[1]}".startswith(GRAMMAR_FAILED)
    assert_plain(answers)
    assert not engine.has_work and engine.stats().free_pages == engine.stats().total_pages


def test_stuck_threads_are_replaced_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    stuck = Form(lambda _: release.wait(NO_MASK_YET))
    threads = masking.MaskThreads(2)
    before = threading.active_count()
    jobs = [masking.MaskJob(masking.MaskRequest(stuck), open_masks(VOCAB, 1)) for _ in range(6)]
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
    masks = open_masks(96, 2)
    masks[0, 1] &= ~np.uint32(1 << 7)
    assert reject_from(0, masks, [5, 6]) == [39, 6]
    assert reject_from(1, masks, [5, 6]) == [5, 6], "a mask that bars nothing rejects nothing"
    assert reject_from(0, np.array([[16384]], np.uint32), []) == []


def test_a_mask_that_came_ends_no_request_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, masks = threading.Event(), masking.Masking(VOCAB)
    matcher = Form(lambda _: asked.wait(NO_MASK_YET))
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
            masks, matcher = masking.Masking(VOCAB), Form()
            masks.begin_step()
            assert masks.next_masks([matcher])
        return sum(thread.name == "masks" for thread in threading.enumerate())

    assert threads() == threads()
