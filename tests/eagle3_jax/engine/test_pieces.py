"""Answers of which only pieces have a form: the pieces do, and nothing else is changed."""

import re
from dataclasses import replace
from typing import Any

import pytest
from driving import Answer, drive, sizes
from spelling_tokenizer import EOS, PIECES, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs

pytest.importorskip("llguidance")
MARK, END = PIECES.index("!"), PIECES.index("?")
PIECE = re.compile(r"!(?:[ab]{2,4}-)+\?")
FORM = StructuredOutputs(grammar='start: "!" part+ "?"\npart: /[ab]{2,4}/ "-"', between=(MARK, END))
OPTIONS: list[dict[str, Any]] = [
    {},
    {"logit_bias": {MARK: 2.0, END: 1.0}},
    {"temperature": 0.9, "num_speculative_tokens": 1},
    {"repetition_penalty": 0.9, "min_tokens": 2},
]


def request_of(index: int, form: StructuredOutputs | None = FORM) -> Request:
    prompt = [(13 * index + 5 * j * j) % VOCAB for j in range(3 + (4 * index) % 15)]
    options = {"seed": index, "max_tokens": 45, **OPTIONS[index % len(OPTIONS)]}
    # Without an end the free text is long enough to have marks in it.
    options |= {"structured_outputs": form, "ignore_eos": index % 3 > 0}
    return Request(f"{index}", prompt, SamplingParams(**options))


REQUESTS = [request_of(index) for index in range(16)]


def ready(target: Target, draft: Eagle3Draft | None, config: EngineConfig) -> Engine:
    return Engine(target, draft, config, tokenizer=SpellingTokenizer(), eos_token_ids=(EOS,))


def one_by_one(target: Target, requests: list[Request]) -> dict[str, Answer]:
    """Plain decoding of each alone."""
    engine = ready(target, None, sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,)))
    answers: dict[str, Answer] = {}
    for request in requests:
        sampling = replace(request.sampling, num_speculative_tokens=None)
        answers |= drive(engine, [replace(request, sampling=sampling)])
    return answers


@pytest.fixture(scope="module")
def alone(target: Target) -> dict[str, Answer]:
    return one_by_one(target, REQUESTS)


def pieces(token_ids: list[int]) -> list[str]:
    """From each mark to the end behind it, or to the answer's where it was cut."""
    text = "".join(PIECES[i] if i < len(PIECES) else f"<{i}>" for i in token_ids)
    return re.findall(r"![^?]*(?:\?|$)", text)


def test_every_piece_has_its_form_and_several_may_come(alone: dict[str, Answer]) -> None:
    found = [pieces(answer.token_ids) for answer in alone.values()]
    whole = [piece for several in found for piece in several if piece.endswith("?")]
    assert len(whole) > 10 and max(map(len, found)) > 1
    assert all(PIECE.fullmatch(piece) for piece in whole)


def test_text_before_the_first_mark_is_what_it_is_without_a_form(
    target: Target, alone: dict[str, Answer]
) -> None:
    free = one_by_one(target, [request_of(index, None) for index in range(len(REQUESTS))])
    differing = 0
    for name, answer in alone.items():
        ours, theirs = answer.token_ids, free[name].token_ids
        end = ours.index(MARK) + 1 if MARK in ours else max(len(ours), len(theirs))
        assert ours[:end] == theirs[:end], name
        differing += ours != theirs
    assert differing > 5, "the form changed nothing behind the marks either"


@pytest.mark.parametrize("exact", [False, True], ids=["bucketed", "exact"])
def test_speculation_batches_and_preemption_change_no_token(
    target: Target, draft: Eagle3Draft, alone: dict[str, Answer], exact: bool
) -> None:
    engine = ready(target, draft, sizes(3, exact=exact))
    for name, answer in drive(engine, REQUESTS, arrival_gap=1).items():
        assert answer.token_ids == alone[name].token_ids, name
        assert (answer.text, answer.finish) == (alone[name].text, alone[name].finish), name
    stats = engine.stats()
    assert stats.num_preemptions > 0 and stats.num_accepted_tokens > 20
    assert stats.free_pages == stats.total_pages


def programs_of(engine: Engine, requests: list[Request]) -> list[str]:
    """The programs that ran, in their order."""
    names: list[str] = []
    run = engine._runner._run

    def logged(program: Any, *inputs: object) -> tuple[Any, ...]:
        names.append(f"{program}")
        return run(program, *inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._runner, "_run", logged)
        drive(engine, requests)
    return names


def test_free_text_runs_in_the_rounds_of_requests_without_a_form(
    target: Target, draft: Eagle3Draft
) -> None:
    """Where no mark comes the programs are the same; with one only its piece has rounds of two."""
    barred = {"logit_bias": {MARK: -100.0}, "min_tokens": 0}
    marked = {"logit_bias": {MARK: 100.0}, "max_tokens": 1, "min_tokens": 0}

    def asked(form: StructuredOutputs | None, **changes: Any) -> list[Request]:
        of = [request_of(index, form) for index in range(4)]
        return [replace(r, sampling=replace(r.sampling, **changes)) for r in of]

    engine = ready(target, draft, sizes(3, enable_prefix_caching=False))
    with_form = programs_of(engine, asked(FORM, **barred))
    assert with_form == programs_of(engine, asked(None, **barred))
    assert "propose of 4" not in with_form
    longer = {**marked, "max_tokens": 2}
    assert "propose of 4" in programs_of(engine, asked(FORM, **longer))
    assert "propose of 4" not in programs_of(engine, asked(FORM, **marked))
