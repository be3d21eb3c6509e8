"""Decode context parallelism: attention over pages that neighbouring devices divide.

All heads read the same latents, so under tensor parallelism every device would keep all of them; of
fewer KV heads than devices, neighbours would keep the same.
In groups of `parts` devices each keeps one part of every page instead: of the page's positions the
d-th device has the d-th part_size. Its slots in their order are its own context, of which a query
sees those up to a *local position*: how many of the visible slots the device holds, less 1. So
operations need no global positions, and a device that holds none of them sees nothing (-1).

A few queries go to the context: a group gathers them, each device attends all of them to its own
slots, and the shares go back to the devices that have the heads, which join them by their masses in
the devices' order. For a long chunk of a prompt latents come to the queries, GATHERED_SLOTS of them
at a time; so they do on a device that has the whole context, because the keys and values that it
makes of all latents would be larger than those. To keys and values all queries go: a group's are
those of one KV head at most, so that its shares are no larger than a row of the residual stream for
each row of the chunk.
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
"""Slots of a context that a device has together while a chunk attends to them: 19 MB of Kimi-K2.5's
latents where others hold parts of them, and what kernels make of them, keys and values of the
device's own heads (8 of them: 67 MB)."""


class SharedContext(NamedTuple):
    """The devices on these mesh axes need the contexts of so many KV heads, of which there are not
    more: equally many neighbours each."""

    axes: MeshAxes
    heads: int


class ContextGroup(NamedTuple):
    """`parts` neighbours on these mesh axes, which divide contexts among them."""

    axis: Axis
    parts: int


def group_of(pool: KVPool, axis: Axis) -> ContextGroup | None:
    """Who holds the pool together; None where this device has all of it."""
    return ContextGroup(axis, pool.parts) if isinstance(pool, SplitPool) else None


def own_part(pages: PageView, pool: KVPool, axis: Axis) -> PageView:
    """What this device writes and sees of a call: rows that others keep go to scratch."""
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
    """The last of this device's slots that a row at each position sees, -1 for none.

    part: which part of each page the device holds.
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
    """Absorbed queries of this device's heads, attended to what the devices of its group hold.

    paged: this device's own part (`own_part`).
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
    """The same of queries whose devices share a KV head; paged: of its keys and values."""
    with jax.named_scope("gather_queries"):
        q = group_gather(q, *group)
    with jax.named_scope("gqa_decode"):
        shares = gqa_share(q, paged, scale)
    with jax.named_scope("exchange_shares"):
        shares = group_exchange(shares, *group)
    with jax.named_scope("join_shares"):
        return join_shares(shares)


def goes_in_chunks(paged: PagedKV, group: ContextGroup | None) -> bool:
    """Whether a prompt's chunk attends to its context piece by piece: several devices hold it, or
    it may be longer than what one device has together."""
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
    """A prompt's chunk, attended to its context as the group's devices hold it, or this one alone.

    paged: this device's own part of pages. The loop runs as often as the context is long, in
    chunks counted from slot 0: a row's bits depend on its own context alone.
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
    """These pages of a group's devices, each part a page of its own, in the order of positions."""
    if group is None:
        return replace(paged, page_table=pages, positions=positions)
    (pool,), (batch, count) = paged.pools, pages.shape
    own = jnp.take(pool, pages, axis=0, mode="clip")
    everyone = group_gather(own, *group).reshape(-1, *pool.shape[1:])
    numbers = jnp.arange(len(everyone)).reshape(group.parts, batch, count)
    table = numbers.transpose(1, 2, 0).reshape(batch, count * group.parts)
    return PagedKV((everyone,), paged.scales, table, positions)
