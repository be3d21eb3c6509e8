"""Decode context parallelism: attention over pages that neighbouring devices divide.

All heads read the same latents, so with tensor parallelism alone every device would keep all of
them. With fewer KV heads than devices, neighbours would keep the same KV head.

In groups of `parts` devices each keeps one part of every page instead: the d-th device has the d-th
`part_size` positions of the page. Its slots in their order are its own context, which a query sees
up to a *local position*: the number of visible slots on the device, less 1. Kernels therefore need
no global positions, and a device without visible slots sees nothing (-1).

Few queries travel to the context. A group gathers them, each device attends all of them to its own
slots, and the partial attention returns to the devices of the heads, which merge it by mass in
device order. For a long prefill chunk latents travel, GATHERED_SLOTS at a time. A device with the
whole context chunks it too, because keys and values expanded from all latents would be larger. With
grouped-query attention queries always travel: a group has those of one KV head at most, so its
partial attention is no larger than a row of the residual stream per row of the chunk.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from eagle3_jax.cache import SCRATCH_PAGE, KVPool, PageView, SplitPool
from eagle3_jax.collectives import Axis, group_exchange, group_gather, index_in_group
from eagle3_jax.mesh import MeshAxes
from pallas_kernels import (
    PagedKV,
    attend_share,
    gqa_share,
    join_shares,
    mla_prefill_part,
    share_values,
)

GATHERED_SLOTS = 16384
"""Context slots that a device holds together while a prefill chunk attends to them. They take 19 MB
for Kimi-K2.5's latents if other devices hold parts of them, plus the keys and values that kernels
expand for the device's own heads (67 MB for 8 heads)."""


class SharedContext(NamedTuple):
    """Mesh axes whose devices share the contexts of `heads` KV heads, equally many devices each."""

    axes: MeshAxes
    heads: int


class ContextGroup(NamedTuple):
    """`parts` neighbours on the mesh axes `axis` that divide contexts among them."""

    axis: Axis
    parts: int


def group_of(pool: KVPool, axis: Axis) -> ContextGroup | None:
    """Return the group that holds the pool together, or None if this device has all of it."""
    return ContextGroup(axis, pool.parts) if isinstance(pool, SplitPool) else None


def own_part(pages: PageView, pool: KVPool, axis: Axis) -> PageView:
    """Restrict a call's view to this device's part; other devices' rows go to the scratch page."""
    if not isinstance(pool, SplitPool):
        return pages
    size, part = pool.own.shape[1], index_in_group(axis, pool.parts)
    keeps = pages.write_offsets // size == part
    return replace(
        pages,
        positions=local_positions(pages.positions, size, pool.parts, part),
        write_pages=jnp.where(keeps, pages.write_pages, SCRATCH_PAGE),
        write_offsets=pages.write_offsets % size,
    )


def local_positions(
    positions: Int[Array, "*rows"], part_size: int, parts: int, part: Int[Array, ""] | int
) -> Int[Array, "*rows"]:
    """Return the last of this device's slots that a row at each position sees, -1 for none.

    `part` is the index of the part that the device holds of each page.
    """
    whole_pages, rest = jnp.divmod(positions + 1, part_size * parts)
    return whole_pages * part_size + jnp.clip(rest - part * part_size, 0, part_size) - 1


def attend_to_shares(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    value_kernel: Float[Array, "heads kv_lora value"],
    group: ContextGroup,
) -> Float[Array, "batch q_len heads value"]:
    """Attend with absorbed queries of this device's heads over the group's divided latents.

    `paged` is this device's own part (`own_part`).
    """
    with jax.named_scope("gather_queries"):
        q_latent, q_rope = (group_gather(q, *group) for q in (q_latent, q_rope))
    with jax.named_scope("mla_decode"):
        shares = attend_share(q_latent, q_rope, paged, scale)
    with jax.named_scope("exchange_shares"):
        shares = group_exchange(shares, *group)
    with jax.named_scope("join_shares"):
        return share_values(shares, value_kernel)


def attend_heads_to_shares(
    q: Float[Array, "batch q_len heads head_dim"],
    paged: PagedKV,
    scale: float,
    group: ContextGroup,
) -> Float[Array, "batch q_len heads head_dim"]:
    """Attend with queries that share a KV head over the group's divided keys and values."""
    with jax.named_scope("gather_queries"):
        q = group_gather(q, *group)
    with jax.named_scope("gqa_decode"):
        shares = gqa_share(q, paged, scale)
    with jax.named_scope("exchange_shares"):
        shares = group_exchange(shares, *group)
    with jax.named_scope("join_shares"):
        return join_shares(shares)


def goes_in_chunks(paged: PagedKV, group: ContextGroup | None) -> bool:
    """Return whether prefill must attend in chunks: the context is divided or may be long."""
    return group is not None or paged.page_table.shape[1] * paged.page_size > GATHERED_SLOTS


def attend_in_chunks(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    pages: PageView,
    scale: float,
    group: ContextGroup | None,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> Float[Array, "batch q_len heads value"]:
    """Attend with a prefill chunk over its context, GATHERED_SLOTS at a time.

    `paged` is this device's own part of the pages. The number of iterations follows the context's
    length, and chunks are counted from slot 0, so a row's bits depend only on its own context.
    """
    page_tokens = paged.page_size * (group.parts if group else 1)
    per_chunk = max(1, GATHERED_SLOTS // page_tokens)
    slots = per_chunk * page_tokens
    missing = -paged.page_table.shape[1] % per_chunk
    table = jnp.pad(paged.page_table, ((0, 0), (0, missing)), constant_values=SCRATCH_PAGE)

    def add_chunk(index: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        total, log_mass = state
        numbers = lax.dynamic_slice_in_dim(table, index * per_chunk, per_chunk, axis=1)
        seen = jnp.clip(pages.positions - index * slots, -1, slots - 1)
        gathered = _gather_pages(paged, numbers, seen, group)
        kernels: Any = {"key_kernel": key_kernel, "value_kernel": value_kernel}
        added, log_added = mla_prefill_part(q_nope, q_rope, gathered, scale, **kernels)
        both = jnp.logaddexp2(log_mass, log_added)
        kept, new = (jnp.exp2(log - both)[..., None] for log in (log_mass, log_added))
        return total * kept + added * new, both

    rows = q_nope.shape[:3]
    start = jnp.zeros((*rows, value_kernel.shape[2])), jnp.full(rows, -jnp.inf)
    total, _ = lax.fori_loop(0, pages.positions.max() // slots + 1, add_chunk, start)
    return total.astype(q_nope.dtype)


def _gather_pages(
    paged: PagedKV,
    pages: Int[Array, "batch pages"],
    positions: Int[Array, "batch q_len"],
    group: ContextGroup | None,
) -> PagedKV:
    """Gather these pages from the group, each part as a page, in the order of positions."""
    if group is None:
        return replace(paged, page_table=pages, positions=positions)
    (pool,), (batch, count) = paged.pools, pages.shape
    own = jnp.take(pool, pages, axis=0, mode="clip")
    everyone = group_gather(own, *group).reshape(-1, *pool.shape[1:])
    numbers = jnp.arange(len(everyone)).reshape(group.parts, batch, count)
    table = numbers.transpose(1, 2, 0).reshape(batch, count * group.parts)
    return PagedKV((everyone,), paged.scales, table, positions)
