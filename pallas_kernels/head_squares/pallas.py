"""GPU kernel of `head_squares`: both sums in one launch, a program per row. XLA takes three."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.row_kernel import row_block
from pallas_kernels.triton import launch, load, store


def refusal(*heads: Array) -> str | None:
    """Return why the kernel cannot run on these operands, or None if it can."""
    if any(x.dtype not in (jnp.bfloat16, jnp.float32) for x in heads):
        return f"expected bfloat16 or float32, got {' and '.join(x.dtype.name for x in heads)}"
    return None


def head_squares(
    q: Float[Array, "*rows q_width"], k: Float[Array, "*rows k_width"]
) -> Float[Array, "*rows 2"]:
    """Implement `pallas_kernels.head_squares.api.head_squares` as a GPU kernel."""
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
