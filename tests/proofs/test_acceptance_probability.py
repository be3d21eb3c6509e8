"""Coupled acceptance is the number that theory gives for the distributions of target and draft."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_distribution import exact_distribution
from slot_rows import option_rows

from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.sampler import sample

VOCAB, DRAWS = 50, 20_000
OPTIONS = SamplingParams(temperature=1.0, seed=11)


def accept_probability(p: np.ndarray, q: np.ndarray) -> float:
    """P(argmax of log p + g equals argmax of log q + g) for Gumbel noise g.

    The sum over ids i of 1 / sum_v max(p_v / p_i, q_v / q_i).
    """
    ratios = np.maximum(p[None] / p[:, None], q[None] / q[:, None])
    return float((1 / ratios.sum(axis=1)).sum())


def check_acceptance(gap: float, seed: int, draft_seed: int) -> None:
    """The share of equal draws of two distributions is the probability above, within 4 standard
    errors."""
    rng = np.random.default_rng(seed)
    target = rng.normal(scale=1.5, size=VOCAB).astype(np.float32)
    draft = (target + rng.normal(scale=gap, size=VOCAB)).astype(np.float32)
    p, q = exact_distribution(target, OPTIONS), exact_distribution(draft, OPTIONS)
    expected, distance = accept_probability(p, q), float(abs(p - q).sum() / 2)
    assert (1 - distance) / (1 + distance) <= expected <= 1 - distance
    rows = option_rows([OPTIONS, replace(OPTIONS, seed=draft_seed)], [0])
    positions = jnp.broadcast_to(jnp.arange(DRAWS), (2, DRAWS))
    logits = jnp.broadcast_to(jnp.stack([target, draft])[:, None], (2, DRAWS, VOCAB))
    chosen, drafted = np.asarray(jax.jit(sample)(logits, positions, rows))
    error = np.sqrt(expected * (1 - expected) / DRAWS)
    assert abs((chosen == drafted).mean() - expected) < 4 * error


@pytest.mark.parametrize("gap", [0.1, 0.5, 1.0, 3.0])
def test_drafts_are_accepted_as_often_as_theory_says(gap: float, long: bool) -> None:
    for seed in range(20 if long else 2):
        check_acceptance(gap, seed, draft_seed=11)


def test_the_proof_notices_a_draft_with_noise_of_its_own() -> None:
    with pytest.raises(AssertionError):
        check_acceptance(0.5, 0, draft_seed=12)
