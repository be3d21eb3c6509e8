"""The benchmark's figures of routing against the experts that the model ran."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_pair import PROMPTS, small_pair

from eagle3_tools.bench.equality.routing import mean_distinct_experts, router_margins, router_scores
from pallas_kernels.grouped_matmul import grouped_mlp


def test_scores_choose_the_experts_that_the_model_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    target, ran = small_pair().target, []

    def record(x, gate, up, down, ids, weights, **options):
        # Layers run traced.
        jax.debug.callback(lambda chosen: ran.append(np.asarray(chosen)), ids, ordered=True)
        return grouped_mlp(x, gate, up, down, ids, weights, **options)

    monkeypatch.setattr(sys.modules["pallas_kernels.moe_mlp"], "grouped_mlp", record)
    tokens = jnp.asarray([PROMPTS[0]])
    target(tokens, jnp.arange(tokens.shape[1])[None], ())
    jax.effects_barrier()
    monkeypatch.undo()
    scores = np.asarray(router_scores(target, tokens))
    chosen = np.argsort(-scores, axis=-1)[..., : ran[0].shape[-1]]
    assert len(ran) == len(scores)
    for recomputed, actual in zip(chosen, ran, strict=True):
        np.testing.assert_array_equal(recomputed[0], actual)


def test_a_margin_lies_between_the_last_chosen_and_the_next() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.45])[None, None, None]
    np.testing.assert_allclose(router_margins(scores, 2), [[[0.05]]])
    assert np.isinf(router_margins(scores, 4)).all()


def test_distinct_experts_are_counted_over_the_rows_of_a_step() -> None:
    first, second = [[3, 2, 1, 0], [3, 2, 1, 0]], [[0, 1, 2, 3], [3, 2, 0, 1]]
    scores = np.array([[first, second]], float)  # one layer, two rows, two steps
    # step 0: {0, 1} and {3, 2}; step 1: {0, 1} twice
    assert mean_distinct_experts(scores, 2) == (4 + 2) / 2
