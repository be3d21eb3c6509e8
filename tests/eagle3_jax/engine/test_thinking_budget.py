"""A budget of thinking forces its end there, and changes nothing before."""

from dataclasses import replace
from typing import Any

import pytest
from driving import Answer, drive, sizes
from spelling_tokenizer import EOS, PIECES
from test_pieces import one_by_one, ready
from tiny import VOCAB

from eagle3_jax.engine import Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.thinking import ThinkingBudget

pytest.importorskip("llguidance")
BEGIN, END, OTHER_END = (PIECES.index(piece) for piece in "(),"[:3])
K = 3
FORMS: list[dict[str, Any]] = [
    {},
    {"structured_outputs": StructuredOutputs(regex="[ab]{3,9}", begins_after=END)},
    {"logit_bias": {OTHER_END: 2.0}},
]


def request_of(index: int, budget: int | None, **options: Any) -> Request:
    """Budgets 0, 1, ... end at every row of a round."""
    thinking = None if budget is None else ThinkingBudget(budget, (END, OTHER_END))
    options = {**FORMS[index % len(FORMS)], "thinking_budget": thinking, **options}
    prompt = [(17 * index + 5 * j * j) % VOCAB for j in range(3 + (4 * index) % 15)]
    sampling = SamplingParams(seed=index, max_tokens=30, ignore_eos=True, **options)
    return Request(f"{index}", prompt, sampling)


BUDGETS = [*range(3 * (K + 1)), 20, 29, 30, 99]
REQUESTS = [request_of(index, budget) for index, budget in enumerate(BUDGETS)]


@pytest.fixture(scope="module")
def alone(target: Target) -> dict[str, Answer]:
    return one_by_one(target, REQUESTS)


def end_of(token_ids: list[int]) -> int:
    """The place of the first end of thinking."""
    places = [i for i, token in enumerate(token_ids) if token in (END, OTHER_END)]
    return min(places, default=len(token_ids))


def test_thinking_ends_at_the_budget_at_the_latest(alone: dict[str, Answer]) -> None:
    forced = 0
    for budget, answer in zip(BUDGETS, alone.values(), strict=True):
        ids = answer.token_ids
        place = end_of(ids)
        assert place <= budget
        if place == budget and budget < len(ids):
            assert ids[place] == END
            forced += 1
    assert forced > 10


def test_before_its_end_the_thinking_is_what_it_is_without_a_budget(
    target: Target, alone: dict[str, Answer]
) -> None:
    free = one_by_one(target, [request_of(index, None) for index in range(len(BUDGETS))])
    for name, answer in alone.items():
        place = end_of(answer.token_ids)
        assert answer.token_ids[:place] == free[name].token_ids[:place], name


@pytest.mark.parametrize("exact", [False, True], ids=["bucketed", "exact"])
def test_speculation_batches_and_preemption_change_no_token(
    target: Target, draft: Eagle3Draft, alone: dict[str, Answer], exact: bool
) -> None:
    engine = ready(target, draft, sizes(K, exact=exact))
    for name, answer in drive(engine, REQUESTS, arrival_gap=1).items():
        assert answer.token_ids == alone[name].token_ids, name
        assert (answer.text, answer.finish) == (alone[name].text, alone[name].finish), name
    stats = engine.stats()
    assert stats.num_preemptions > 0 and stats.num_accepted_tokens > 20


def test_thinking_may_begin_with_the_answers_first_token(
    target: Target, draft: Eagle3Draft
) -> None:
    """Its mark is none of the budget's tokens; without it nobody thinks and nothing is forced."""
    begun, never = (
        replace(
            request_of(0, None, logit_bias={BEGIN: bias}).sampling,
            thinking_budget=ThinkingBudget(4, (END,), begins=BEGIN),
        )
        for bias in (100.0, -100.0)
    )
    plain = replace(never, thinking_budget=None)
    asked = {"begun": begun, "never": never, "plain": plain}
    requests = [Request(name, [5, 6, 7], sampling) for name, sampling in asked.items()]
    answers = {n: a.token_ids for n, a in drive(ready(target, draft, sizes(K)), requests).items()}
    assert answers["begun"].count(BEGIN) and END in answers["begun"][1:6]
    assert answers["never"] == answers["plain"]


def test_without_grammars_a_budget_is_refused(target: Target, draft: Eagle3Draft) -> None:
    engine = ready(target, draft, sizes(K, enable_structured_outputs=False))
    with pytest.raises(ValueError, match=r"eagle3-jax\[grammar\]"):
        engine.add(request_of(0, 4))
    with pytest.raises(ValueError, match="token ids end at"):
        ids = {"thinking_budget": ThinkingBudget(1, (VOCAB,))}
        ready(target, draft, sizes(K)).add(request_of(0, None, **ids))


@pytest.mark.parametrize(("tokens", "ends"), [(-1, (EOS,)), (3, ())])
def test_what_is_no_budget_is_refused(tokens: int, ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="thinking budget"):
        ThinkingBudget(tokens, ends)
