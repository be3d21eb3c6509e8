"""Attention to the context of one KV head that is split over several devices.

Every device attends the query heads of all of them to its own part of the context (`gqa_share`),
sends each head's partial attention to the head's device, and joins those it receives
(`join_shares`): a few sums, which XLA fuses into one loop.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.paged.gqa import mean_and_mass, scores_and_values
from pallas_kernels.paged.gqa_kernel import attend_part, choose_tiles
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.partial import MASS, apart, check_part, in_one, pack
from pallas_kernels.paged.partial_kernel import merge_partial
from pallas_kernels.paged.softmax import softmax_and_mass
from pallas_kernels.paged.split_kv import attend_in_parts, refuse


def gqa_share(
    q: Float[Array, "groups batch q_len heads head_dim"],
    paged: PagedKV,
    scale: float,
    *,
    implementation: str | None = None,
) -> Float[Array, "groups batch q_len heads partial"]:
    """Attend the queries of `groups` devices to this device's part of each context.

    paged: pools of keys and values with rows [1, head_dim], and the page table. A position is the
    last of this device's slots that the query sees, -1 if it sees none. Trees are not supported.
    Scores are multiplied by `scale`.
    Returns rows as those of `pallas_kernels.attend_share`, with a mean of values. Raises ValueError
    on shapes that do not fit and on an implementation that cannot run.
    """
    k_pool, v_pool = paged.pools
    if k_pool.shape != v_pool.shape or k_pool.shape[2:] != (1, q.shape[-1]):
        raise ValueError(
            f"gqa_share: k_pool {k_pool.shape} and v_pool {v_pool.shape} must be equal, with rows "
            f"of one head of {q.shape[-1]} as the queries have"
        )
    check_part("gqa_share", q, paged)
    return GQA_SHARE(implementation, q, paged, scale)


def _reference(q: Array, paged: PagedKV, scale: float) -> Array:
    scores, values = scores_and_values(in_one(q), paged, scale)
    weights, mass = softmax_and_mass(scores[:, :, 0])
    mean = jnp.einsum("bqhs,bsd->bqhd", weights.astype(values.dtype), values[:, :, 0])
    return apart(pack(mean, mass, q.dtype), len(q))


def _on_cpu(q: Array, paged: PagedKV, scale: float) -> Array:
    """Copy a chunk once for all groups."""
    return apart(pack(*mean_and_mass(in_one(q), paged, scale), q.dtype), len(q))


def _launch(q: Array, paged: PagedKV, scale: float) -> Array:
    groups, batch, q_len, heads, head_dim = q.shape
    rows, by_group = groups * q_len * heads, (groups, batch, q_len * heads)
    tiles = choose_tiles(rows, 1, head_dim, q.dtype, paged.pools[0].dtype)
    parts = attend_in_parts(
        partial(attend_part, shared=heads, scale=scale * math.log2(math.e)),
        name="gqa_share",
        queries=(q.reshape(*by_group, head_dim),),
        paged=paged,
        dim=head_dim,
        row_tiles=pl.cdiv(rows, tiles.rows),
        tiles=tiles,
    )
    out = jax.ShapeDtypeStruct((*by_group, head_dim + MASS), q.dtype)
    return merge_partial(*parts, out, name="gqa_share_merge").reshape(*q.shape[:-1], -1)


GQA_SHARE = Operation("gqa_share", reference=_reference, pallas=_launch, refuse=refuse, xla=_on_cpu)
