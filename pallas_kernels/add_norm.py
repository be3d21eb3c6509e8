"""Residual sum and its RMS norm. The kernel takes one launch; XLA takes two and rereads the sum."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.rms_norm import Norm, rms_norm
from pallas_kernels.row_kernel import row_block
from pallas_kernels.triton import launch, load, store, whole


def add_norm(
    x: Float[Array, "*rows hidden"],
    added: Float[Array, "*rows hidden"],
    norm: Norm,
    *,
    implementation: str | None = None,
) -> tuple[Float[Array, "*rows hidden"], Float[Array, "*rows hidden"]]:
    """Return x + added and its RMS norm: the residual stream and the input of the next block.

    `added` and both results have x's dtype. The norm is `rms_norm` of the rounded sum.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    if added.shape != x.shape or norm.weight.shape != x.shape[-1:]:
        raise ValueError(
            f"add_norm: expected x and added of one shape [.., hidden] and a weight [hidden], got "
            f"{x.shape}, {added.shape} and {norm.weight.shape}"
        )
    return ADD_NORM(implementation, x, added, norm)


def _reference(x: Array, added: Array, norm: Norm) -> tuple[Array, Array]:
    total = x + added
    return total, rms_norm(total, norm)


def _refuse(x: Array, added: Array, norm: Norm) -> str | None:
    if x.dtype not in (jnp.bfloat16, jnp.float32) or added.dtype != x.dtype:
        return f"expected bfloat16 or float32 and twice the same, got {x.dtype} and {added.dtype}"
    return None


def _launch(x: Array, added: Array, norm: Norm) -> tuple[Array, Array]:
    rows = x.reshape(-1, x.shape[-1]), added.reshape(-1, x.shape[-1])
    out = [jax.ShapeDtypeStruct(rows[0].shape, x.dtype)] * 2
    total, normed = launch(
        partial(_add_row, eps=norm.eps),
        name="add_norm",
        grid=(len(rows[0]),),
        in_specs=[*map(row_block, rows), whole(norm.weight)],
        out_specs=[*map(row_block, out)],
        out_shape=out,
        num_warps=4 if x.shape[-1] <= 4096 else 8,
    )(*rows, norm.weight)
    return total.reshape(x.shape), normed.reshape(x.shape)


def _add_row(x: Any, added: Any, weight: Any, total: Any, normed: Any, *, eps: float) -> None:
    """Kernel body: the sum of a row, rounded to x's dtype, and its norm.

    Grid: rows. Blocks: [hidden] of x, added and both results, hidden padded to a power of two, all
    of it in registers. Limit: memory bandwidth, four rows a program. Units: float32 inside.
    """
    column = jnp.arange(pl.next_power_of_2(x.shape[0]))
    inside = column < x.shape[0]
    one, other = (
        load(ref.at[column], mask=inside, other=0.0).astype(jnp.float32) for ref in (x, added)
    )
    rounded = (one + other).astype(x.dtype)
    store(total.at[column], rounded, mask=inside)
    wide = rounded.astype(jnp.float32)
    root = jax.lax.rsqrt(jnp.sum(wide * wide) / x.shape[0] + eps)
    own = load(weight.at[column], mask=inside, other=0.0)
    store(normed.at[column], own * (wide * root).astype(x.dtype), mask=inside)


ADD_NORM = Operation("add_norm", reference=_reference, pallas=_launch, refuse=_refuse)
