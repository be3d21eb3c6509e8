"""GPU kernels of partial attention: storing and merging rows, and joining those of devices."""

from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.paged.context_part import ContextPart
from pallas_kernels.paged.kernel import LOWEST, Softmax, load_where, padded
from pallas_kernels.paged.partial import MASS, terms, terms_of
from pallas_kernels.paged.split_kv import joined
from pallas_kernels.triton import dot, launch, store

ROWS, LATENTS, VALUES = 16, 128, 64
"""Rows of a program, latent columns multiplied at a time, and columns of values."""


def store_partial(
    own: ContextPart, state: Softmax, value_scale: Array, row: Array, is_row: Array
) -> None:
    """Store rows of partial attention [groups, rows, width] for an unsplit context."""
    some, (_, rows, width) = state.mass != 0, own.out.shape
    mass = jnp.where(some, state.mass, 1.0)
    mean = jnp.where(some[:, None], state.total * (value_scale / mass)[:, None], 0.0)
    log_mass = jnp.where(some, state.peak + jnp.log2(mass), LOWEST)
    group, row = lax.div(row, rows)[:, None], lax.rem(row, rows)[:, None]
    column, place = jnp.arange(mean.shape[1])[None, :], jnp.arange(MASS)[None, :]
    behind = _columns([term[:, None] for term in terms(log_mass, own.out.dtype)], place)
    kv_lora = width - MASS
    mask = is_row[:, None]
    store(
        own.out.at[group, row, column], mean.astype(own.out.dtype), mask=mask & (column < kv_lora)
    )
    store(own.out.at[group, row, kv_lora + place], behind.astype(own.out.dtype), mask=mask)


def _columns(found: Sequence[Array], place: Array) -> Array:
    """Put each term into its column; other columns are zero."""
    columns = jnp.zeros(place.shape, jnp.float32)
    for number, term in enumerate(found):
        columns = jnp.where(place == number, term, columns)
    return columns


def merge_partial(
    parts: Float[Array, "batch splits all_rows kv_lora"],
    log_mass: Float[Array, "batch splits all_rows"],
    out: jax.ShapeDtypeStruct,
    *,
    name: str,
) -> Float[Array, "groups batch rows partial"]:
    """Merge the context parts of each row into its partial attention."""
    (batch, splits, all_rows, kv_lora), (_, _, rows, width) = parts.shape, out.shape
    return launch(
        _merge_row,
        name=name,
        grid=(all_rows, batch),
        in_specs=[
            pl.BlockSpec((None, splits, None, kv_lora), lambda r, b: (b, 0, r, 0)),
            pl.BlockSpec((None, splits, None), lambda r, b: (b, 0, r)),
        ],
        out_specs=pl.BlockSpec(
            (None, None, None, width), lambda r, b: (lax.div(r, rows), b, lax.rem(r, rows), 0)
        ),
        out_shape=out,
    )(parts, log_mass)


def _merge_row(parts: Any, log_mass: Any, out: Any) -> None:
    """Kernel body: merge a row's parts, round to out's dtype, and append their log mass.

    Grid: rows of all groups x sequences. Blocks: parts [splits, kv_lora] and log_mass [splits] of
    the row, all in registers. Limit: memory bandwidth. Units: float32 parts, logarithms to the base
    2; a part of -inf is not read.
    """
    kv_lora = parts.shape[1]
    mean, mass = joined(parts, log_mass)
    column, place = jnp.arange(padded(kv_lora)), jnp.arange(MASS)
    store(out.at[column], mean.astype(out.dtype), mask=column < kv_lora)
    behind = _columns(terms(mass, out.dtype), place)
    store(out.at[kv_lora + place], behind.astype(out.dtype))


def launch_share_values(partials: Array, value_kernel: Array) -> Array:
    (groups, batch, q_len, heads, width), (_, kv_lora, value) = partials.shape, value_kernel.shape
    rows = batch * q_len
    values = min(VALUES, padded(value, 16))
    out = launch(
        partial(_join_rows, values=values),
        name="mla_share_values",
        grid=(heads, pl.cdiv(value, values), pl.cdiv(rows, ROWS)),
        in_specs=[
            pl.BlockSpec((groups, rows, None, width), lambda h, v, r: (0, 0, h, 0)),
            pl.BlockSpec((None, kv_lora, value), lambda h, v, r: (h, 0, 0)),
        ],
        out_specs=pl.BlockSpec((rows, None, value), lambda h, v, r: (0, h, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, heads, value), value_kernel.dtype),
        num_stages=2,
    )(partials.reshape(groups, rows, heads, width), value_kernel)
    return out.reshape(batch, q_len, heads, value)


def _join_rows(partials: Any, value_kernel: Any, out: Any, *, values: int) -> None:
    """Kernel body: join partial attention for a tile of one head's rows, times a tile of W_UV.

    Grid: heads x tiles of columns x tiles of rows. Blocks: partials [groups, rows, width] and W_UV
    [kv_lora, value] of the head; [ROWS, LATENTS] of each group at a time. Limit: loads in flight,
    all groups' of a step. Units: float32 sums in the groups' order; logarithms to the base 2.
    """
    (groups, rows, _), (kv_lora, value) = partials.shape, value_kernel.shape
    latents = min(LATENTS, padded(kv_lora, 16))
    row = pl.program_id(2) * ROWS + jnp.arange(ROWS)
    column = pl.program_id(1) * values + jnp.arange(values)
    is_column = None if value % values == 0 else (column < value)[None, :]
    # These loads are never masked: AMD GPUs would branch and wait. Rows past the end repeat the
    # last one.
    there, group = jnp.minimum(row, rows - 1)[None, :], jnp.arange(padded(groups))[:, None]
    is_group = group < groups
    group = jnp.minimum(group, groups - 1)
    logs = jnp.where(is_group, _log_mass(partials, group, there, kv_lora), LOWEST)
    weights = jnp.where(is_group, jnp.exp2(logs - jnp.max(logs, axis=0)[None, :]), 0.0)
    weights /= jnp.sum(weights, axis=0)[None, :]

    def add_latents(index: Array, total: Array) -> Array:
        latent = index * latents + jnp.arange(latents)
        is_latent = None if kv_lora % latents == 0 else latent < kv_lora
        kept = None if is_latent is None else is_latent[None, None, :]
        place = group[:, :, None], there[:, :, None], latent[None, None, :]
        means = load_where(partials, place, kept).astype(jnp.float32)
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


def _log_mass(partials: Any, group: Array, row: Array, kv_lora: int) -> Array:
    """Load the log masses; see `pallas_kernels.paged.partial.unpack`."""
    found = [
        load_where(partials, (group, row, jnp.full((1, 1), kv_lora + term)))
        for term in range(terms_of(partials.dtype))
    ]
    return reduce(add, (term.astype(jnp.float32) for term in found))
