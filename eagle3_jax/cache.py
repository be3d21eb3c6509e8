"""The paged KV cache: pools of pages, and the view one call has of them.

A pool is one array per layer `[pages, page_size, *row]` (a stacked `[layers, ...]` array would
overflow 32-bit offsets at 61 thousand tokens of Kimi-K2.5). Page 0 is scratch: unallocated table
entries, finished rows and padding point there, so every write has somewhere harmless to go.
Rollback is by length alone: a row beyond the committed length is masked by position and written
again before any query can see it.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

SCRATCH_PAGE = 0
FP8_MAX = 448.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedPool:
    """float8_e4m3fn rows; what they stand for is value * scale. scale: float32, one a pool."""

    values: Float[Array, "pages page_size *row"]
    scale: Float[Array, ""]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the values."""
        return self.values.shape


KVPool = Float[Array, "pages page_size *row"] | QuantizedPool
KVPools = tuple[KVPool, ...]
"""The pools of one layer; empty where no cache is used."""


def rows_and_scale(pool: KVPool) -> tuple[Array, Float[Array, ""] | None]:
    """A pool as attention takes it: the stored rows, and their factor where there is one."""
    return (pool.values, pool.scale) if isinstance(pool, QuantizedPool) else (pool, None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PageView:
    """Which cache rows one call writes and sees; the same for every layer.

    page_table: int32 [batch, pages_per_seq], physical page of each logical page.
    positions: int32 [batch, q_len], absolute position of each query row; it sees slots <= it.
    write_pages, write_offsets: int32 [batch, q_len], where each row's KV goes.
    ancestors: bool [batch, q_len, nodes], where rows are nodes of a tree: positions are then the
        last before the tree, node i lies i + 1 slots after it, and a row sees its ancestors too.
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
    """Addresses rows at `positions`; rows not valid, or past the table, write to scratch."""
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
    """Addresses the last q_len nodes of trees that begin at slot seq_lens, a slot for each node.

    ancestors: of each row, itself included. Rows of inactive sequences write to scratch.
    """
    rows, nodes = ancestors.shape[1:]
    slots = seq_lens[:, None] + jnp.arange(nodes - rows, nodes)
    written = jnp.broadcast_to(active[:, None], slots.shape)
    last = jnp.broadcast_to(jnp.maximum(seq_lens - 1, 0)[:, None], slots.shape)
    view = view_pages(page_table, slots, written, page_size)
    return replace(view, positions=last, ancestors=ancestors)


def move_rows(pool: KVPool, origin: PageView, to: PageView) -> KVPool:
    """Copies the rows that `origin` addresses to where `to` writes; all are read before."""
    if isinstance(pool, QuantizedPool):
        return replace(pool, values=_move(pool.values, origin, to))
    return _move(pool, origin, to)


def _move(pool: Array, origin: PageView, to: PageView) -> Array:
    rows = pool.at[origin.write_pages, origin.write_offsets].get(mode="promise_in_bounds")
    return _scatter(pool, rows, to)


def contain_spoiled(
    keys: Float[Array, "batch q_len *key"], values: Float[Array, "batch q_len *value"]
) -> Float[Array, "batch q_len *value"]:
    """Values to cache beside these keys: zeros where the row's input was not finite.

    Such a row's keys are NaN throughout, as is all that is projected from it, so a query that sees
    it gets NaN from its score. One that doesn't, an earlier row of the same chain, is left alone:
    a NaN among the values would reach it at weight 0.
    """
    first = keys.reshape(*keys.shape[:2], -1)[..., 0]
    spoiled = jnp.isnan(first).reshape(*first.shape, *[1] * (values.ndim - 2))
    return jnp.where(spoiled, 0, values)


def write_rows(pool: KVPool, rows: Float[Array, "batch q_len *row"], pages: PageView) -> KVPool:
    """Stores one KV row per query row, rounded to the pool's numbers.

    Float8 saturates: what is beyond 448 scales becomes that, and NaN stays.
    """
    if not isinstance(pool, QuantizedPool):
        return _scatter(pool, rows, pages)
    scaled = jnp.clip(rows.astype(jnp.float32) / pool.scale, -FP8_MAX, FP8_MAX)
    return replace(pool, values=_scatter(pool.values, scaled, pages))


def _scatter(
    pool: Float[Array, "pages page_size *row"],
    rows: Float[Array, "batch q_len *row"],
    pages: PageView,
) -> Float[Array, "pages page_size *row"]:
    """Page and offset stay apart: no flat index can overflow.

    A lone row is written twice: XLA:CPU turns a scatter of one row into a slice update, repeats
    that inside the reads that follow, and copies the whole pool instead of writing in place.
    """
    where = (pages.write_pages.reshape(-1), pages.write_offsets.reshape(-1))
    flat = rows.reshape(-1, *rows.shape[2:]).astype(pool.dtype)
    if flat.shape[0] == 1:
        where, flat = tuple(jnp.repeat(x, 2, axis=0) for x in where), jnp.repeat(flat, 2, axis=0)
    return pool.at[where].set(flat, mode="promise_in_bounds")
