"""Latent attention to a context that is split over several devices, with the same page ids on each.

Every device attends the heads of all of them to its own part of the context (`attend_share`), sends
each head's partial attention to the head's device, and joins those it receives (`share_values`).
The kernel of `mla_decode` reads queries in the layout of the all-gather and writes results in the
layout of the send, by group, so that neither needs a copy.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.mla import check_row, mean_and_mass, scores_and_rows
from pallas_kernels.paged.mla_kernel import attend_part, choose_tiles
from pallas_kernels.paged.partial import MASS, apart, check_part, in_one, join_shares, pack
from pallas_kernels.paged.partial_kernel import launch_share_values, merge_partial, store_partial
from pallas_kernels.paged.softmax import softmax_and_mass
from pallas_kernels.paged.split_kv import attend_in_parts, launch_parts, of_groups, refuse


def attend_share(
    q_latent: Float[Array, "groups batch q_len heads kv_lora"],
    q_rope: Float[Array, "groups batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    implementation: str | None = None,
) -> Float[Array, "groups batch q_len heads partial"]:
    """Attend the absorbed queries of `groups` devices to this device's part of each context.

    paged: this device's pool and page table. A position is the last of this device's slots that the
    query sees, -1 if it sees none. Trees are not supported. Scores are multiplied by `scale`.
    A row of the result, in the queries' bfloat16 or float32, is the mean of latents, 0 without
    visible slots, followed by MASS numbers. The first of these (float32) or the sum of the first
    three (bfloat16) is the float32 base-2 logarithm of the sum of exp(score), -1e30 without visible
    slots; the others are 0. If a visible slot holds NaN, mean and logarithm are NaN.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    check_row("attend_share", paged, q_latent.shape[-1], q_rope.shape[-1])
    check_part("attend_share", q_latent, paged)
    return ATTEND_SHARE(implementation, q_latent, q_rope, paged, scale)


def _attend_reference(q_latent: Array, q_rope: Array, paged: PagedKV, scale: float) -> Array:
    groups, *_, kv_lora = q_latent.shape
    scores, rows = scores_and_rows(in_one(q_latent), in_one(q_rope), paged, scale)
    weights, mass = softmax_and_mass(scores)
    latent = rows[..., :kv_lora]
    mean = jnp.einsum("bqhs,bsl->bqhl", weights.astype(latent.dtype), latent)
    return apart(pack(mean, mass, q_latent.dtype), groups)


def _attend_on_cpu(q_latent: Array, q_rope: Array, paged: PagedKV, scale: float) -> Array:
    """Copy a chunk once for all groups."""
    found = mean_and_mass(in_one(q_latent), in_one(q_rope), paged, scale)
    return apart(pack(*found, q_latent.dtype), q_latent.shape[0])


def _launch(q_latent: Array, q_rope: Array, paged: PagedKV, scale: float) -> Array:
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
        whole = partial(attend, store_rows=store_partial)
        outs = {"out_specs": [of_groups(out)], "out_shape": [out]}
        (partials,) = launch_parts(whole, name="mla_share", **asked, **outs)
    else:
        parts = attend_in_parts(attend, name="mla_share_parts", dim=kv_lora, **asked)
        partials = merge_partial(*parts, out, name="mla_share_merge")
    return partials.reshape(*q_latent.shape[:-1], -1)


ATTEND_SHARE = Operation(
    "attend_share",
    reference=_attend_reference,
    pallas=_launch,
    refuse=refuse,
    xla=_attend_on_cpu,
)


def share_values(
    partials: Float[Array, "groups batch q_len heads partial"],
    value_kernel: Float[Array, "heads kv_lora value"],
    *,
    implementation: str | None = None,
) -> Float[Array, "batch q_len heads value"]:
    """Join the partial attention of `groups` devices and compute each head's values.

    Rows are those of `attend_share`. Means are weighted by their masses and added in float32 in the
    order of the groups; each head's mean is multiplied by its matrix. Rows without a visible slot
    in any group are 0.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    heads, kv_lora, _ = value_kernel.shape
    if partials.shape[3:] != (heads, kv_lora + MASS):
        raise ValueError(
            f"share_values: value_kernel {value_kernel.shape} must be (heads, kv_lora, value), and "
            f"partials end with (heads, kv_lora + {MASS}); got {partials.shape}"
        )
    return SHARE_VALUES(implementation, partials, value_kernel)


def _values_reference(partials: Array, value_kernel: Array) -> Array:
    return jnp.einsum("bqhc,hcd->bqhd", join_shares(partials), value_kernel)


SHARE_VALUES = Operation(
    "share_values",
    reference=_values_reference,
    pallas=launch_share_values,
    refuse=refuse,
)
