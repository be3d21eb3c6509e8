"""Proof (d): rejected and foreign KV rows are never read, through a whole engine's life.

NaN fills every row past the committed ones before every program: rows of rejected drafts, rows that
earlier owners left in reused pages, rows lost to preemption, scratch.
"""

from dataclasses import replace
from typing import Any

import jax
import pytest
from broken_programs import compile_rounds_anew
from driving import Answer, drive, sizes
from poison import Poison
from tiny import VOCAB

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.programs import executor
from eagle3_jax.layers import gqa, mla
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

KINDS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.0, min_p=0.05),
)
CHAIN, TREE = sizes(3), sizes(3, eagle_topk=3, num_draft_tokens=9)
CANCEL_AT = {"2": 6, "5": 20}


def traffic(count: int) -> list[Request]:
    """Prompts of 1 to 20 tokens, answers of 25 to 40: too long for all pages at once."""
    return [
        Request(
            str(i),
            [(11 * i + 5 * j * j) % VOCAB for j in range(1 + (7 * i) % 20)],
            replace(KINDS[i % len(KINDS)], seed=i, max_tokens=25 + (4 * i) % 16),
        )
        for i in range(count)
    ]


def answers_of(engine: Engine, count: int) -> dict[str, tuple[list[int], list[int]]]:
    """Tokens and accepted counts of the traffic: stale rows in the draft's cache show there."""
    found: dict[str, Answer] = drive(engine, traffic(count), cancel_at=CANCEL_AT)
    return {name: (answer.token_ids, answer.accepted) for name, answer in found.items()}


def check_poison(
    monkeypatch: pytest.MonkeyPatch,
    target: Target,
    draft: Eagle3Draft,
    count: int,
    config: EngineConfig = CHAIN,
) -> None:
    """Poisoned and clean engines answer alike."""
    clean, spoiled = (Engine(target, draft, config) for _ in range(2))
    expected = answers_of(clean, count)
    poison = Poison(monkeypatch, spoiled)
    assert answers_of(spoiled, count) == expected, "stale rows were read"
    stats = spoiled.stats()
    assert poison.rows > 0 and stats.num_preemptions > 0
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.mark.long
def test_poisoned_rows_change_nothing(
    monkeypatch: pytest.MonkeyPatch, target: Target, draft: Eagle3Draft
) -> None:
    """The short form is the law of worlds, in tests/worlds."""
    for config in (CHAIN, TREE):
        check_poison(monkeypatch, target, draft, count=100, config=config)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layer", "name"), [(mla, "mla_decode"), (gqa, "gqa_decode")], ids=["target", "draft"]
)
def test_the_proof_notices_a_row_read_too_far(
    monkeypatch: pytest.MonkeyPatch,
    target: Target,
    draft: Eagle3Draft,
    layer: Any,
    name: str,
) -> None:
    """Attention that sees one slot past its position."""
    exact = getattr(layer, name)

    def too_far(*inputs: Any, **options: Any) -> jax.Array:
        *queries, paged = inputs
        return exact(*queries, replace(paged, positions=paged.positions + 1), **options)

    monkeypatch.setattr(layer, name, too_far)
    compile_rounds_anew(monkeypatch, executor)
    with pytest.raises(AssertionError, match="stale rows were read"):
        check_poison(monkeypatch, target, draft, count=8)
