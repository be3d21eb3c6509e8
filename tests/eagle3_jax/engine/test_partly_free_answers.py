"""Pieces of a form in free text, and budgets of thinking: they hold, and change nothing else."""

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
from eagle3_jax.sampling.thinking import ThinkingBudget

pytest.importorskip("llguidance")
K = 3
FIRST, LAST, BEGIN, END, OTHER_END = (PIECES.index(piece) for piece in "!?(),")
PIECE = re.compile(r"!(?:[ab]{2,4}-)+\?")
FORM = StructuredOutputs(
    grammar='start: "!" part+ "?"\npart: /[ab]{2,4}/ "-"', between=(FIRST, LAST)
)
PIECE_OPTIONS: list[dict[str, Any]] = [
    {},
    {"logit_bias": {FIRST: 2.0, LAST: 1.0}},
    {"temperature": 0.9, "num_speculative_tokens": 1},
    {"repetition_penalty": 0.9, "min_tokens": 2},
]
BUDGETS = [*range(2 * (K + 1)), 20, 29, 30, 99]
"""They end at every row of a round."""
BUDGET_OPTIONS: list[dict[str, Any]] = [
    {},
    {"structured_outputs": StructuredOutputs(regex="[ab]{3,9}", begins_after=END)},
    {"logit_bias": {OTHER_END: 2.0}},
    {"structured_outputs": FORM, "logit_bias": {FIRST: 1.0}},
]


def with_pieces(index: int, form: StructuredOutputs | None = FORM) -> Request:
    """Without an end two of three are long enough to have pieces."""
    options = {"seed": index, "max_tokens": 45, **PIECE_OPTIONS[index % len(PIECE_OPTIONS)]}
    options |= {"structured_outputs": form, "ignore_eos": index % 3 > 0}
    prompt = [(13 * index + 5 * j * j) % VOCAB for j in range(3 + (4 * index) % 15)]
    return Request(f"pieces {index}", prompt, SamplingParams(**options))


def with_budget(index: int, budget: int | None, **options: Any) -> Request:
    thinking = None if budget is None else ThinkingBudget(budget, (END, OTHER_END, FIRST))
    of_index = BUDGET_OPTIONS[index % len(BUDGET_OPTIONS)]
    options = {**of_index, "thinking_budget": thinking, "ignore_eos": True, **options}
    prompt = [(17 * index + 5 * j * j) % VOCAB for j in range(3 + (4 * index) % 15)]
    return Request(f"{budget}", prompt, SamplingParams(seed=index, max_tokens=30, **options))


IN_PIECES = [with_pieces(index) for index in range(12)]
THINKING = [with_budget(index, budget) for index, budget in enumerate(BUDGETS)]


def ready(target: Target, draft: Eagle3Draft | None, config: EngineConfig) -> Engine:
    return Engine(target, draft, config, tokenizer=SpellingTokenizer(), eos_token_ids=(EOS,))


@pytest.fixture(scope="module")
def plain(target: Target) -> Engine:
    return ready(target, None, sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,)))


def one_by_one(plain: Engine, requests: list[Request]) -> dict[str, Answer]:
    """Plain decoding of each alone."""
    answers: dict[str, Answer] = {}
    for request in requests:
        sampling = replace(request.sampling, num_speculative_tokens=None)
        answers |= drive(plain, [replace(request, sampling=sampling)])
    return answers


@pytest.fixture(scope="module")
def alone(plain: Engine) -> dict[str, Answer]:
    return one_by_one(plain, [*IN_PIECES, *THINKING])


def pieces(token_ids: list[int]) -> list[str]:
    """From each mark to the end behind it, or to the answer's where it was cut."""
    text = "".join(PIECES[i] if i < len(PIECES) else f"<{i}>" for i in token_ids)
    return re.findall(r"![^?]*(?:\?|$)", text)


def test_every_piece_has_its_form_and_several_may_come(alone: dict[str, Answer]) -> None:
    found = [pieces(alone[request.request_id].token_ids) for request in IN_PIECES]
    whole = [piece for several in found for piece in several if piece.endswith("?")]
    assert len(whole) > 4 and max(map(len, found)) > 1
    assert all(PIECE.fullmatch(piece) for piece in whole)


def test_text_before_the_first_mark_is_what_it_is_without_a_form(
    plain: Engine, alone: dict[str, Answer]
) -> None:
    differing = 0
    for index, request in enumerate(IN_PIECES):
        (free,) = one_by_one(plain, [with_pieces(index, None)]).values()
        ours, theirs = alone[request.request_id].token_ids, free.token_ids
        end = ours.index(FIRST) + 1 if FIRST in ours else max(len(ours), len(theirs))
        assert ours[:end] == theirs[:end], index
        differing += ours != theirs
    assert differing > 4, "the form changed nothing behind the marks either"


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
    """Where no mark comes the programs are the same; behind one rounds of two go on."""
    engine = ready(target, draft, sizes(K, enable_prefix_caching=False))

    def run(form: StructuredOutputs | None, bias: float, **changes: Any) -> list[str]:
        changes |= {"logit_bias": {FIRST: bias}, "min_tokens": 0}
        of = [with_pieces(index, form) for index in range(4)]
        requests = [replace(r, sampling=replace(r.sampling, **changes)) for r in of]
        return programs_of(engine, requests)

    never = run(FORM, -100.0)
    assert never == run(None, -100.0) and "propose of 4" not in never
    assert "propose of 4" not in run(FORM, 100.0, max_tokens=1)
    assert "propose of 4" in run(FORM, 100.0, max_tokens=2)


def end_of(token_ids: list[int]) -> int:
    """The place of the first end of thinking."""
    places = [i for i, token in enumerate(token_ids) if token in (END, OTHER_END, FIRST)]
    return min(places, default=len(token_ids))


def test_thinking_ends_at_the_budget_and_before_it_is_what_it_is_without(
    plain: Engine, alone: dict[str, Answer]
) -> None:
    forced = 0
    for index, budget in enumerate(BUDGETS):
        ids = alone[f"{budget}"].token_ids
        place = end_of(ids)
        assert place <= budget
        if place == budget and budget < len(ids):
            assert ids[place] == END
            forced += 1
        (free,) = one_by_one(plain, [with_budget(index, None)]).values()
        assert ids[:place] == free.token_ids[:place], budget
    assert forced > 6


def test_thinking_may_begin_with_the_answers_first_token(
    target: Target, draft: Eagle3Draft
) -> None:
    """Its mark is none of the budget's tokens; without it nobody thinks and nothing is forced."""
    budget = ThinkingBudget(4, (END,), begins=BEGIN)
    free = with_budget(0, None, logit_bias={BEGIN: -100.0}).sampling
    asked = {
        "begun": replace(free, thinking_budget=budget, logit_bias={BEGIN: 100.0}),
        "never": replace(free, thinking_budget=budget),
        "plain": free,
    }
    requests = [Request(name, [5, 6, 7], sampling) for name, sampling in asked.items()]
    answers = {n: a.token_ids for n, a in drive(ready(target, draft, sizes(K)), requests).items()}
    assert answers["begun"][:6] == [BEGIN] * 5 + [END]
    assert answers["never"] == answers["plain"]


def test_what_can_not_be_held_here_is_refused(target: Target, draft: Eagle3Draft) -> None:
    engine = ready(target, draft, sizes(K, enable_structured_outputs=False))
    with pytest.raises(ValueError, match=r"eagle3-jax\[grammar\]"):
        engine.add(with_budget(0, 4))
    strange = with_budget(0, None, thinking_budget=ThinkingBudget(1, (VOCAB,)))
    with pytest.raises(ValueError, match="token ids end at"):
        ready(target, draft, sizes(K)).add(strange)


@pytest.mark.parametrize(("tokens", "ends"), [(-1, (EOS,)), (3, ())])
def test_what_is_no_budget_is_refused(tokens: int, ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="thinking budget"):
        ThinkingBudget(tokens, ends)
