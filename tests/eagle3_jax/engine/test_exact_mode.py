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
