"""Drafts chosen in the kernel are those that would be sampled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.sampling import sample
from eagle3_jax.sampling_rows import SamplingRows
from eagle3_jax.speculative.draft_choice import choose_in_kernel, chooses_in_kernel
from pallas_kernels import dispatch, gpu

BATCH, HIDDEN, VOCAB = 6, 32, 90
RNG = np.random.default_rng(5)


def options() -> SamplingRows:
    """Half of the rows may not stop yet."""
    stops = np.full((BATCH, 8), -1, np.int32)
    stops[:, :5] = RNG.integers(0, VOCAB, (BATCH, 5))
    return SamplingRows(
        temperature=jnp.asarray([0, 0, 0.5, 1, 1, 2], jnp.float32),
        top_p=jnp.ones(BATCH),
        min_p=jnp.asarray([0, 0.5, 0.1, 0, 0.1, 0.5], jnp.float32),
        top_k=jnp.zeros(BATCH, jnp.int32),
        seed=jnp.asarray(RNG.integers(0, 2**32, (BATCH, 2), np.uint32)),
        min_len=jnp.asarray([0, 100] * (BATCH // 2), jnp.int32),
        stop_ids=jnp.asarray(stops),
    )


@pytest.mark.parametrize("reduced", [False, True])
def test_the_choice_is_the_samplers(reduced: bool) -> None:
    ids = jnp.asarray(np.sort(RNG.permutation(500)[:VOCAB]), jnp.int32) if reduced else None
    hidden = jnp.asarray(RNG.normal(size=(BATCH, HIDDEN)), jnp.float32)
    head = jnp.asarray(RNG.normal(size=(HIDDEN, VOCAB)) / 3, jnp.float32)
    positions, rows = jnp.arange(BATCH, dtype=jnp.int32) + 40, options()
    with dispatch.prefer("pallas"):
        got = jax.jit(lambda: choose_in_kernel(hidden, head, positions, rows, ids))()
    expected = jax.jit(sample)((hidden @ head)[:, None], positions[:, None], rows, ids)[:, 0]
    np.testing.assert_array_equal(got, expected)


def test_on_cpu_drafts_are_sampled_from_logits() -> None:
    assert not chooses_in_kernel()
    with gpu.assume("gfx950"):
        assert chooses_in_kernel()
