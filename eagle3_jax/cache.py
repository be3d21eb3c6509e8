"""The paged KV cache: pools of pages, and the view of one call.

A pool is one array per layer, `[pages, page_size, *row]`; a stacked `[layers, ...]` array would
overflow 32-bit offsets at 61 thousand tokens of Kimi-K2.5. Page 0 is scratch: unallocated table
entries, finished rows and padding point there, so that every write has a harmless target. Rollback
is by length alone: rows beyond the committed length are masked by position and overwritten before
any query can see them.
"""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.paged.rows import scatter_rows

SCRATCH_PAGE = 0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedPool:
    """float8_e4m3fn rows and their float32 scale per pool; rows represent value * scale."""

    values: Float[Array, "pages page_size *row"]
    scale: Float[Array, ""]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


StoredPool = Float[Array, "pages page_size *row"] | QuantizedPool


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SplitPool:
    """A pool of which each of `parts` neighbouring devices holds a part of every page.

    `own` is this device's part, `pages part_size *row`; the d-th device of a group holds the d-th
    part_size positions of each page (`eagle3_jax.layers.split_context`).
    """

    own: StoredPool
    parts: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all parts together: a page's positions are those of all devices."""
        pages, part_size, *row = self.own.shape
        return (pages, part_size * self.parts, *row)


KVPool = StoredPool | SplitPool
KVPools = tuple[KVPool, ...]
"""The pools of one layer; empty without a cache."""


def rows_and_scale(pool: KVPool) -> tuple[Array, Float[Array, ""] | None]:
    """Return the rows that this device stores, and their scale if there is one."""
    if isinstance(pool, SplitPool):
        return rows_and_scale(pool.own)
    return (pool.values, pool.scale) if isinstance(pool, QuantizedPool) else (pool, None)


def with_rows(pool: KVPool, stored: Array) -> KVPool:
    """Return the pool with the rows of this device replaced."""
    if isinstance(pool, SplitPool):
        return replace(pool, own=with_rows(pool.own, stored))
    return replace(pool, values=stored) if isinstance(pool, QuantizedPool) else stored


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PageView:
    """Cache rows that one call writes and sees; the same for every layer.

    `page_table` holds int32 physical pages [batch, pages_per_seq]. A query row sees slots up to its
    absolute position, int32 [batch, q_len], and writes to `write_pages` and `write_offsets`. If
    rows are nodes of a tree, `ancestors` is bool [batch, q_len, nodes], positions are the last
    before the tree, node i is i + 1 slots after it, and a row sees its ancestors too.
    """

    page_table: Int[Array, "batch pages_per_seq"]
    positions: Int[Array, "batch q_len"]
    write_pages: Int[Array, "batch q_len"]
    write_offsets: Int[Array, "batch q_len"]
    ancestors: Bool[Array, "batch q_len nodes"] | None = None


def view_pages(
    page_table: Int[Array, "batch pages_per_seq"],
    positions: Int[Array, "batch q_len"],
    valid: Bool[Array, "batch q_len"],
    page_size: int,
) -> PageView:
    """Address rows at `positions`; invalid rows and rows past the table write to scratch."""
    width = page_table.shape[1]
    logical = positions // page_size
    inside = valid & (logical < width)
    pages = jnp.take_along_axis(page_table, jnp.minimum(logical, width - 1), axis=1)
    return PageView(
        page_table, positions, jnp.where(inside, pages, SCRATCH_PAGE), positions % page_size
    )


def view_nodes(
    page_table: Int[Array, "batch pages_per_seq"],
    seq_lens: Int[Array, " batch"],
    ancestors: Bool[Array, "batch q_len nodes"],
    active: Bool[Array, " batch"],
    page_size: int,
) -> PageView:
    """Address the last q_len nodes of trees, one slot per node from slot `seq_lens` on.

    `ancestors` includes each row itself. Rows of inactive sequences write to scratch.
    """
    rows, nodes = ancestors.shape[1:]
    slots = seq_lens[:, None] + jnp.arange(nodes - rows, nodes)
    written = jnp.broadcast_to(active[:, None], slots.shape)
    last = jnp.broadcast_to(jnp.maximum(seq_lens - 1, 0)[:, None], slots.shape)
    view = view_pages(page_table, slots, written, page_size)
    return replace(view, positions=last, ancestors=ancestors)


def move_rows(pool: KVPool, origin: PageView, to: PageView) -> KVPool:
    """Copy the rows addressed by `origin` to where `to` writes; all reads come first."""
    stored, _ = rows_and_scale(pool)
    rows = stored.at[origin.write_pages, origin.write_offsets].get(mode="promise_in_bounds")
    return with_rows(pool, scatter_rows(stored, rows, to.write_pages, to.write_offsets))
