"""Join of partial attention of several devices, followed by the product with W_UV."""

from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.mla_share.layout import terms_of
from pallas_kernels.paged.kernel import LOWEST, load_where, padded
from pallas_kernels.triton import dot, launch, store

ROWS, LATENTS, VALUES = 16, 128, 64
"""Rows of a program, latent columns multiplied at a time, and columns of values."""


def share_values(
    shares: Float[Array, "groups batch q_len heads share"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> Float[Array, "batch q_len heads value"]:
    """Implement `pallas_kernels.mla_share.api.share_values` as a GPU kernel."""
    (groups, batch, q_len, heads, share), (_, kv_lora, value) = shares.shape, value_kernel.shape
    rows = batch * q_len
    values = min(VALUES, padded(value, 16))
    out = launch(
        partial(_join_rows, values=values),
        name="mla_share_values",
        grid=(heads, pl.cdiv(value, values), pl.cdiv(rows, ROWS)),
        in_specs=[
            pl.BlockSpec((groups, rows, None, share), lambda h, v, r: (0, 0, h, 0)),
            pl.BlockSpec((None, kv_lora, value), lambda h, v, r: (h, 0, 0)),
        ],
        out_specs=pl.BlockSpec((rows, None, value), lambda h, v, r: (0, h, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, heads, value), value_kernel.dtype),
        num_stages=2,
    )(shares.reshape(groups, rows, heads, share), value_kernel)
    return out.reshape(batch, q_len, heads, value)


def _join_rows(shares: Any, value_kernel: Any, out: Any, *, values: int) -> None:
    """Kernel body: join partial attention for a tile of one head's rows, times a tile of W_UV.

    Grid: heads x tiles of columns x tiles of rows. Blocks: shares [groups, rows, share] and W_UV
    [kv_lora, value] of the head; [ROWS, LATENTS] of each group at a time. Limit: loads in flight,
    all groups' of a step. Units: float32 sums in the groups' order; logarithms to the base 2.
    """
    (groups, rows, _), (kv_lora, value) = shares.shape, value_kernel.shape
    latents = min(LATENTS, padded(kv_lora, 16))
    row = pl.program_id(2) * ROWS + jnp.arange(ROWS)
    column = pl.program_id(1) * values + jnp.arange(values)
    is_column = None if value % values == 0 else (column < value)[None, :]
    # Loads of shares are never masked: AMD GPUs would branch and wait. Rows past the end repeat the
    # last one.
    there, group = jnp.minimum(row, rows - 1)[None, :], jnp.arange(padded(groups))[:, None]
    is_group = group < groups
    group = jnp.minimum(group, groups - 1)
    logs = jnp.where(is_group, _log_mass(shares, group, there, kv_lora), LOWEST)
    weights = jnp.where(is_group, jnp.exp2(logs - jnp.max(logs, axis=0)[None, :]), 0.0)
    weights /= jnp.sum(weights, axis=0)[None, :]

    def add_latents(index: Array, total: Array) -> Array:
        latent = index * latents + jnp.arange(latents)
        is_latent = None if kv_lora % latents == 0 else latent < kv_lora
        kept = None if is_latent is None else is_latent[None, None, :]
        place = group[:, :, None], there[:, :, None], latent[None, None, :]
        means = load_where(shares, place, kept).astype(jnp.float32)
        mean = jnp.sum(means * weights[:, :, None], axis=0)
        place = latent[:, None], column[None, :]
        inside = None if is_latent is None else is_latent[:, None]
        matrix = load_where(value_kernel, place, inside, is_column)
        return total + dot(mean.astype(matrix.dtype), matrix)

    total = jnp.zeros((ROWS, values), jnp.float32)
    total = lax.fori_loop(0, pl.cdiv(kv_lora, latents), add_latents, total)
    # In interpreted mode, a masked store rewrites the old value: keep it off places that are
    # written.
    row = jnp.where(row < rows, row, rows)
    mask = (row < rows)[:, None] & (column < value)[None, :]
    store(out.at[row[:, None], column[None, :]], total.astype(out.dtype), mask=mask)


def _log_mass(shares: Any, group: Array, row: Array, kv_lora: int) -> Array:
    """Load the log masses; see `pallas_kernels.mla_share.layout.unpack`."""
    found = [
        load_where(shares, (group, row, jnp.full((1, 1), kv_lora + term)))
        for term in range(terms_of(shares.dtype))
    ]
    return reduce(add, (term.astype(jnp.float32) for term in found))
