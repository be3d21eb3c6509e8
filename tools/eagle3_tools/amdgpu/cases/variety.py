"""Data in which a swapped row, block or scale shows: what examples make alike, made unlike."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.quantized import QuantizedArray


def unlike_scales(arguments: Any, seed: int) -> Any:
    """Every quantised matrix with scales between half and twice what they were, each its own."""
    rng = np.random.default_rng(seed)

    def vary(leaf: Any) -> Any:
        return replace(leaf, scale=_vary(leaf.scale, rng)) if _is_quantised(leaf) else leaf

    return jax.tree.map(vary, arguments, is_leaf=_is_quantised)


def unlike_weights(weight: Array, seed: int) -> Array:
    """A norm's weights between a half and two."""
    drawn = np.random.default_rng(seed).uniform(0.5, 2, weight.shape)
    return jnp.asarray(drawn, weight.dtype)


def unlike_rows(pool: Array, seed: int) -> Array:
    """A pool that something was written to before."""
    drawn = np.random.default_rng(seed).normal(size=pool.shape)
    return jnp.asarray(drawn, jnp.float32).astype(pool.dtype)


def unlike_contexts(paged: PagedKV, *lengths: int) -> PagedKV:
    """A context of its own length for each sequence; NaN in every slot that no query sees. Values
    count twice as much as keys where pools have scales."""
    slots = paged.page_table.shape[1] * paged.page_size
    behind = slots - jnp.asarray(lengths, jnp.int32)[:, None]
    scales = (scale if scale is None else scale * (1 + n) for n, scale in enumerate(paged.scales))
    shorter = replace(paged, positions=paged.positions - behind, scales=tuple(scales))
    slot = jnp.arange(slots)
    pages = paged.page_table[:, slot // paged.page_size]
    seen = jnp.zeros(paged.pools[0].shape[:2], bool)
    seen = seen.at[pages, slot % paged.page_size].set(shorter.in_use(slot))

    def spoil(pool: Array) -> Array:
        return jnp.where(seen.reshape(*seen.shape, *(1,) * (pool.ndim - 2)), pool, jnp.nan)

    return replace(shorter, pools=tuple(spoil(pool).astype(pool.dtype) for pool in paged.pools))


def _is_quantised(leaf: Any) -> bool:
    return isinstance(leaf, QuantizedArray)


def _vary(scale: Array, rng: np.random.Generator) -> Array:
    if scale.dtype == jnp.uint8:
        return scale + jnp.asarray(rng.integers(-1, 2, scale.shape), jnp.uint8)
    return scale * jnp.asarray(rng.uniform(0.5, 2, scale.shape), scale.dtype)
