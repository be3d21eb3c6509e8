"""Tokens chosen in the kernel are those that would be sampled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling_rows import sampling_rows

from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import sample
from eagle3_jax.speculative.head_choice import choose_in_kernel
from eagle3_jax.speculative.logit_control_rows import TokenBiases
from pallas_kernels import dispatch

BATCH, ROWS, HIDDEN, VOCAB = 6, 2, 32, 90
RNG = np.random.default_rng(5)
HEAD = jnp.asarray(RNG.normal(size=(HIDDEN, VOCAB)) / 3, jnp.float32)
HIDDEN_STATES = jnp.asarray(RNG.normal(size=(BATCH, ROWS, HIDDEN)), jnp.float32)
POSITIONS = jnp.arange(BATCH * ROWS, dtype=jnp.int32).reshape(BATCH, ROWS) + 40


def options() -> SamplingRows:
    """Half of the rows may not stop yet, one of them in its first row alone."""
    return sampling_rows(
        BATCH,
        RNG.integers(0, VOCAB, (BATCH, 5)),
        temperature=[0, 0, 0.5, 1, 1, 2],
        min_p=[0, 0.5, 0.1, 0, 0.1, 0.5],
        seed=RNG.integers(0, 2**32, (BATCH, 2), np.uint32),
        min_len=[0, 43, 0, 100, 0, 100],
    )


def biases(ids: jax.Array) -> TokenBiases:
    """Eight for each row of the batch but the first, among padding."""
    chosen = np.stack([RNG.permutation(VOCAB)[:12] for _ in range(BATCH)])
    chosen = np.where(np.arange(12) % 3 == 1, -1, np.asarray(ids)[chosen])
    chosen[0] = -1
    return TokenBiases(
        jnp.asarray(chosen, jnp.int32), jnp.asarray(RNG.normal(size=(BATCH, 12)) * 3, jnp.float32)
    )


def add_biases(logits: jax.Array, added: TokenBiases, ids: jax.Array) -> jax.Array:
    meant = added.ids[..., None] == ids
    return logits + (jnp.where(meant, added.values[..., None], 0).sum(1))[:, None]


@pytest.mark.parametrize("reduced", [False, True])
def test_the_choice_is_the_samplers(reduced: bool) -> None:
    every = jnp.arange(VOCAB, dtype=jnp.int32)
    ids = jnp.asarray(np.sort(RNG.permutation(500)[:VOCAB]), jnp.int32) if reduced else None
    columns, rows = every if ids is None else ids, options()
    added = biases(columns)
    with dispatch.prefer("pallas"):
        got = jax.jit(lambda: choose_in_kernel(HIDDEN_STATES, HEAD, POSITIONS, rows, added, ids))()
    logits = add_biases(HIDDEN_STATES @ HEAD, added, columns)
    expected = jax.jit(sample)(logits, POSITIONS, rows, ids)
    np.testing.assert_array_equal(got, expected)
    plain = jax.jit(sample)(HIDDEN_STATES @ HEAD, POSITIONS, rows, ids)
    assert (np.asarray(expected)[1:] != np.asarray(plain)[1:]).any(), "no bias changed anything"


def test_devices_that_hold_parts_of_the_vocabulary_choose_as_one_with_all_of_it() -> None:
    """Under min-p, biases and stop ids; the last column's tie goes to the first."""
    head = HEAD.at[:, -1].set(HEAD[:, 0])
    rows, added = options(), biases(jnp.arange(VOCAB))
    parts = jnp.stack(jnp.split(head, 3, axis=1))

    def on_device(part: jax.Array) -> jax.Array:
        return choose_in_kernel(HIDDEN_STATES, part, POSITIONS, rows, added, axis="tensor")

    got = jax.jit(jax.vmap(on_device, axis_name="tensor"))(parts)
    logits = add_biases(HIDDEN_STATES @ head, added, jnp.arange(VOCAB))
    expected = jax.jit(sample)(logits, POSITIONS, rows)
    np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape))
