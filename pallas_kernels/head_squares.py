"""Sums of squares of queries and keys. The kernel takes one launch; XLA takes three."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.row_kernel import row_block
from pallas_kernels.triton import launch, load, store


def head_squares(
    q: Float[Array, "*rows q_width"],
    k: Float[Array, "*rows k_width"],
    *,
    implementation: str | None = None,
) -> Float[Array, "*rows 2"]:
    """Return float32 sums of squares of each row of queries and of keys, for norms over all heads.

    Devices that hold some of the heads add up their sums, both at once. Raises ValueError on shapes
    that do not fit and on an implementation that cannot run.
    """
    if q.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"head_squares: expected q and k of the same rows: {q.shape}, {k.shape}")
    return HEAD_SQUARES(implementation, q, k)


def _reference(q: Array, k: Array) -> Array:
    wide = q.astype(jnp.float32), k.astype(jnp.float32)
    return jnp.stack([jnp.sum(x * x, axis=-1) for x in wide], axis=-1)


def _refuse(*heads: Array) -> str | None:
    if any(x.dtype not in (jnp.bfloat16, jnp.float32) for x in heads):
        return f"expected bfloat16 or float32, got {' and '.join(x.dtype.name for x in heads)}"
    return None


def _launch(q: Array, k: Array) -> Array:
    flat = [x.reshape(-1, x.shape[-1]) for x in (q, k)]
    out = jax.ShapeDtypeStruct((len(flat[0]), 2), jnp.float32)
    squares = launch(
        _sum_row,
        name="head_squares",
        grid=(len(flat[0]),),
        in_specs=[*map(row_block, flat)],
        out_specs=row_block(out),
        out_shape=out,
    )(*flat)
    return squares.reshape(*q.shape[:-1], 2)


def _sum_row(q: Any, k: Any, out: Any) -> None:
    """Kernel body: the sums of squares of a row of queries and of keys.

    Grid: rows. Blocks: [width] of q and k, padded to powers of two, all in registers; out [2].
    Limit: launches, not work: 14 registers. Units: float32 sums.
    """
    column = jnp.arange(2)
    store(out.at[column], jnp.where(column == 0, _squares(q), _squares(k)))


def _squares(ref: Any) -> Array:
    column = jnp.arange(pl.next_power_of_2(ref.shape[0]))
    wide = load(ref.at[column], mask=column < ref.shape[0], other=0.0).astype(jnp.float32)
    return jnp.sum(wide * wide)


HEAD_SQUARES = Operation("head_squares", reference=_reference, pallas=_launch, refuse=_refuse)
