"""GPU kernel of `attend_share`: the kernel of `mla_decode` on the rows of all devices.

Queries are read in the layout of the all-gather and results written in the layout of the send, by
group, so that neither needs a copy.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.mla_decode.pallas import attend_part, choose_tiles
from pallas_kernels.mla_share.layout import MASS, terms
from pallas_kernels.paged.context_part import ContextPart
from pallas_kernels.paged.kernel import LOWEST, Softmax, padded
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import attend_in_parts, joined, launch_parts, of_groups
from pallas_kernels.triton import launch, store


def attend_share(
    q_latent: Float[Array, "groups batch q_len heads kv_lora"],
    q_rope: Float[Array, "groups batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
) -> Float[Array, "groups batch q_len heads share"]:
    """Implement `pallas_kernels.mla_share.api.attend_share` as a GPU kernel."""
    groups, batch, q_len, heads, kv_lora = q_latent.shape
    rows = groups * q_len * heads
    tiles = choose_tiles(batch, rows, kv_lora, q_latent.dtype, paged)
    attend = partial(attend_part, q_len=q_len, heads=heads, scale=scale * math.log2(math.e))
    by_group = groups, batch, q_len * heads
    asked: Any = {
        "queries": (q_latent.reshape(*by_group, -1), q_rope.reshape(*by_group, -1)),
        "paged": paged,
        "row_tiles": pl.cdiv(rows, tiles.rows),
        "tiles": tiles,
    }
    out = jax.ShapeDtypeStruct((*by_group, kv_lora + MASS), q_latent.dtype)
    if tiles.splits == 1:
        whole = partial(attend, leave=_leave_share)
        outs = {"out_specs": [of_groups(out)], "out_shape": [out]}
        (shares,) = launch_parts(whole, name="mla_share", **asked, **outs)
    else:
        parts = attend_in_parts(attend, name="mla_share_parts", dim=kv_lora, **asked)
        shares = merge_shares(*parts, out, name="mla_share_merge")
    return shares.reshape(*q_latent.shape[:-1], -1)


def _leave_share(
    own: ContextPart, state: Softmax, value_scale: Array, row: Array, is_row: Array
) -> None:
    """Store rows of partial attention [groups, rows, share] for an unsplit context."""
    some, (_, rows, share) = state.mass != 0, own.out.shape
    mass = jnp.where(some, state.mass, 1.0)
    mean = jnp.where(some[:, None], state.total * (value_scale / mass)[:, None], 0.0)
    log_mass = jnp.where(some, state.peak + jnp.log2(mass), LOWEST)
    group, row = lax.div(row, rows)[:, None], lax.rem(row, rows)[:, None]
    column, place = jnp.arange(mean.shape[1])[None, :], jnp.arange(MASS)[None, :]
    behind = _columns([term[:, None] for term in terms(log_mass, own.out.dtype)], place)
    kv_lora = share - MASS
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


def merge_shares(
    parts: Float[Array, "batch splits all_rows kv_lora"],
    log_mass: Float[Array, "batch splits all_rows"],
    out: jax.ShapeDtypeStruct,
    *,
    name: str,
) -> Float[Array, "groups batch rows share"]:
    """Merge the context parts of each row into its partial attention."""
    (batch, splits, all_rows, kv_lora), (_, _, rows, share) = parts.shape, out.shape
    return launch(
        _merge_row,
        name=name,
        grid=(all_rows, batch),
        in_specs=[
            pl.BlockSpec((None, splits, None, kv_lora), lambda r, b: (b, 0, r, 0)),
            pl.BlockSpec((None, splits, None), lambda r, b: (b, 0, r)),
        ],
        out_specs=pl.BlockSpec(
            (None, None, None, share), lambda r, b: (lax.div(r, rows), b, lax.rem(r, rows), 0)
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
