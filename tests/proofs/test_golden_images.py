"""Greedy answers about images are transformers', whatever drafts them."""

from itertools import product
from typing import Any

import pytest
from driving import drive, sizes
from golden_images import (
    DRAFTS,
    PROMPTS,
    golden_draft,
    golden_requests,
    golden_target,
    golden_vision,
)
from sweeps import sweep

from eagle3_jax.engine import Engine, EngineConfig

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {},
    "exact": {"exact": True},
    "tree": {"eagle_topk": 2, "num_draft_tokens": 6},
}
ALL = list(product(DRAFTS, SHAPES, ("pad", "target")))
COVER = [("mha", "exact", "target")]


def answers(kind: str | None, config: EngineConfig) -> dict[str, list[int]]:
    draft = golden_draft(kind) if kind else None
    seeing = Engine(golden_target(), draft, config, eos_token_ids=(), vision=golden_vision())
    found = drive(seeing, golden_requests())
    assert (seeing.stats().num_draft_tokens > 0) == bool(kind)
    return {name: answer.token_ids for name, answer in found.items()}


@pytest.mark.parametrize(("kind", "shape", "embedding"), sweep(ALL, COVER))
def test_greedy_answers_with_drafts_are_transformers(kind: str, shape: str, embedding: str) -> None:
    config = sizes(3, mm_draft_embedding=embedding, **SHAPES[shape])
    assert answers(kind, config) == {name: facts["greedy"] for name, facts in PROMPTS.items()}


@pytest.mark.long
@pytest.mark.parametrize("shape", ["chain", "exact"])
def test_greedy_answers_without_drafts_are_transformers(shape: str) -> None:
    """So that answers with drafts are plain ones."""
    config = sizes(3 if shape == "exact" else 0, **SHAPES[shape])
    assert answers(None, config) == {name: facts["greedy"] for name, facts in PROMPTS.items()}
