"""Attention through pages equals attention over the whole sequence, for any split of its rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny import HIDDEN, TARGET

from eagle3_jax.cache import view_pages
from eagle3_jax.config import RopeConfig
from eagle3_jax.layers import mla
from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.rope import rope_tables
from pallas_kernels.dispatch import prefer

LENGTH, BATCH = 21, 2
ROPE = RopeConfig(1000.0)
SPLITS: dict[int, Sequence[int]] = {1: (20, 1), 4: (1,) * 21, 16: (7, 7, 7)}
"""Rows of each call, by page size."""


def inputs(width: int) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (BATCH, LENGTH, width))


def amplified(layer: nnx.Module) -> nnx.Module:
    """Large weights, so that attention is far from uniform."""
    nnx.update(layer, jax.tree.map(lambda x: x * (1 if x.ndim == 1 else 12), nnx.state(layer)))
    return layer


def paged(layer: Any, x: jax.Array, rope_dim: int, page_size: int) -> jax.Array:
    """Runs the layer over pools of NaN, page order shuffled, in calls of SPLITS rows."""
    width = -(-LENGTH // page_size)
    order = np.random.default_rng(1).permutation(BATCH * width) + 1
    table = jnp.asarray(order.reshape(BATCH, width))
    shape = (BATCH * width + 1, page_size)
    pools = tuple(jnp.full((*shape, *row), jnp.nan) for row in layer.pool_rows)

    @jax.jit
    def call(x: jax.Array, positions: jax.Array, pools: Any) -> Any:
        view = view_pages(table, positions, jnp.ones(positions.shape, bool), page_size)
        return layer(x, rope_tables(ROPE, rope_dim, positions), pools, view)

    outputs, start = [], 0
    for size in SPLITS[page_size]:
        positions = jnp.broadcast_to(jnp.arange(start, start + size), (BATCH, size))
        out, pools = call(x[:, start : start + size], positions, pools)
        outputs.append(out)
        start += size
    return jnp.concatenate(outputs, axis=1)


def whole(layer: Any, x: jax.Array, rope_dim: int) -> jax.Array:
    positions = jnp.broadcast_to(jnp.arange(LENGTH), (BATCH, LENGTH))
    return jax.jit(lambda x: layer(x, rope_tables(ROPE, rope_dim, positions))[0])(x)


@pytest.mark.parametrize(
    ("page_size", "q_lora_rank", "inputs_of"), [(1, 16, 1), (4, 16, 2), (16, None, 1)]
)
def test_absorbed_latent_attention_equals_expanded(
    page_size: int, q_lora_rank: int | None, inputs_of: int
) -> None:
    """The target's attention, and a draft's, which reads [embedding, state]."""
    target = replace(TARGET, q_lora_rank=q_lora_rank).latent_attention
    config = replace(target, input_size=inputs_of * HIDDEN)
    layer = amplified(mla.MLAttention(config, rngs=nnx.Rngs(3), dtype=jnp.float32))
    x, dim = inputs(config.input_size), config.qk_rope_head_dim
    expected = whole(layer, x, dim)
    assert float(jnp.abs(expected).max()) > 1
    absorbed = paged(layer, x, dim, page_size)
    np.testing.assert_allclose(absorbed, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernels", ["xla", "pallas"])
def test_a_long_chunk_attends_as_the_whole_sequence_does(
    monkeypatch: pytest.MonkeyPatch, kernels: str
) -> None:
    monkeypatch.setattr(mla, "EXPANDED_ROWS", 7)
    config = TARGET.latent_attention
    layer = amplified(mla.MLAttention(config, rngs=nnx.Rngs(3), dtype=jnp.float32))
    x, dim = inputs(config.input_size), config.qk_rope_head_dim
    with prefer(kernels):
        expanded = paged(layer, x, dim, page_size=16)
    np.testing.assert_allclose(expanded, whole(layer, x, dim), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("page_size", SPLITS)
def test_grouped_query_attention_through_pages_equals_one_pass(page_size: int) -> None:
    layer = GQAttention(24, HIDDEN, 4, 2, 8, rngs=nnx.Rngs(4), dtype=jnp.float32)
    x = inputs(24)
    expected = whole(amplified(layer), x, 8)
    assert float(jnp.abs(expected).max()) > 1
    through_pages = paged(layer, x, 8, page_size)
    np.testing.assert_allclose(through_pages, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernels", ["xla", "pallas"])
def test_normed_heads_rotated_in_part_attend_as_in_one_pass(kernels: str) -> None:
    """MiniMax's attention; the weights of the norms tell the heads apart."""
    layer = GQAttention(24, HIDDEN, 4, 2, 8, qk_norm_eps=1e-6, rngs=nnx.Rngs(4), dtype=jnp.float32)
    for norm in (layer.q_norm, layer.k_norm):
        norm.weight.set_value(jnp.linspace(0.5, 4.0, norm.weight.get_value().size))
    x = inputs(24)
    expected = whole(amplified(layer), x, 4)
    assert float(jnp.abs(expected).max()) > 1
    with prefer(kernels):
        through_pages = paged(layer, x, 4, page_size=16)
    np.testing.assert_allclose(through_pages, expected, rtol=1e-4, atol=1e-4)
