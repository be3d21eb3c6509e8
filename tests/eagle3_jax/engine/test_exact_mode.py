"""In exact mode plain and speculative output come from equal arithmetic: no tie can part them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from driving import Answer, drive, sizes

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.programs import compiled
from eagle3_jax.engine.programs.compiled import PairStructure, Structure, compile_program
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels.exact import asks_for_exact_bits

pytestmark = pytest.mark.optimised


@pytest.fixture(scope="module")
def exact_plain(target: Target, requests: list[Request]) -> dict[str, Answer]:
    """Without a draft, never preempted."""
    engine = Engine(target, None, sizes(3, exact=True))
    answers: dict[str, Answer] = {}
    for request in requests:
        answers |= drive(engine, [request])
    assert engine.stats().num_preemptions == engine.stats().num_draft_tokens == 0
    return answers


@pytest.mark.parametrize(
    ("draft", "with_draft"),
    [("grouped", True), ("latent", True), ("grouped", False)],
    ids=["grouped", "latent", "plain"],
    indirect=["draft"],
)
@pytest.mark.parametrize("arrival_gap", [0, 2])
def test_draft_batch_and_preemption_change_no_token(
    target: Target,
    draft: Eagle3Draft,
    with_draft: bool,
    arrival_gap: int,
    requests: list[Request],
    exact_plain: dict[str, Answer],
) -> None:
    engine = Engine(target, draft if with_draft else None, sizes(3, exact=True))
    answers = drive(engine, requests, arrival_gap=arrival_gap)
    for name, answer in answers.items():
        assert answer.token_ids == exact_plain[name].token_ids
        assert answer.finish == exact_plain[name].finish
        assert len(answer.token_ids) == 1 + sum(count + 1 for count in answer.accepted)
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.generation_tokens == sum(len(a.token_ids) for a in answers.values())
    assert stats.free_pages == stats.total_pages


def test_exact_and_bucketed_engines_agree(
    plain: dict[str, Answer], exact_plain: dict[str, Answer]
) -> None:
    """Under the tie rule; none of these requests has a tie."""
    for name, answer in exact_plain.items():
        assert answer.token_ids == plain[name].token_ids


def test_kernels_are_asked_for_exact_bits_in_exact_mode_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def program(*_: Any, **__: Any) -> Callable[..., Any]:
        def function(*arrays: Any) -> Any:
            asked.append(asks_for_exact_bits())
            return arrays

        return function

    monkeypatch.setattr(compiled, "program", program)
    for exact in (False, True):
        pair = PairStructure(Structure(None, None), None, (), exact=exact)
        compile_program(ProgramKind.ROUND, pair, *[jax.ShapeDtypeStruct((1,), jnp.float32)] * 3)
    assert asked == [False, True] and not asks_for_exact_bits()
