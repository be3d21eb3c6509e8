"""Paged KV pools with the slots that each query sees: the input of paged attention."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PagedKV:
    """Paged pools of keys and values, and the slots that the queries of one call see.

    Attributes:
        pools: [pages, page_size, *row]: one pool of latents, or one of keys and one of values.
        scales: A float32 for each float8 pool, None for other pools. Attention uses stored values
            times the scale.
        page_table: Slot s of sequence b lies in page `page_table[b, s // page_size]`. Pages past
            the last one that a query sees may be any integer.
        positions: Query (b, j) sees slot s iff s <= positions[b, j] (>= 0).
        ancestors: If the queries are nodes of a tree, slot positions[b, j] + 1 + i holds node i and
            is also seen iff ancestors[b, j, i].

    Slots that no query of a sequence sees may hold anything, NaN included.
    """

    pools: tuple[Float[Array, "pages page_size *row"], ...]
    scales: tuple[Float[Array, ""] | None, ...]
    page_table: Int[Array, "batch pages_per_seq"]
    positions: Int[Array, "batch q_len"]
    ancestors: Bool[Array, "batch q_len nodes"] | None = None

    @property
    def page_size(self) -> int:
        """Number of slots of a page."""
        return self.pools[0].shape[1]

    @property
    def flat_pools(self) -> tuple[Float[Array, "slots numbers"], ...]:
        """Pools with one row of numbers for each slot of all pages, as kernels index them."""
        return tuple(
            pool.reshape(pool.shape[0] * pool.shape[1], math.prod(pool.shape[2:]))
            for pool in self.pools
        )

    @property
    def page_pools(self) -> tuple[Float[Array, "pages numbers"], ...]:
        """Pools with one row of numbers for each page, page_size slots long."""
        return tuple(pool.reshape(pool.shape[0], math.prod(pool.shape[1:])) for pool in self.pools)

    @property
    def factors(self) -> tuple[Float[Array, "1"], ...]:
        """Scales as kernels load them: 1 for a pool that has none."""
        return tuple(map(as_factor, self.scales))

    def in_use(self, slots: Int[Array, " slots"]) -> Bool[Array, "batch slots"]:
        """Return which of the given slots some query of a sequence sees."""
        if self.ancestors is not None:
            return visible_slots(slots, self.positions, self.ancestors).any(axis=1)
        return slots <= self.positions.max(1, keepdims=True)

    def context(self, dtype: DTypeLike) -> tuple[Float[Array, "batch slots *row"], ...]:
        """Return the rows of every slot of the page table in `dtype`, for each pool."""
        slots = jnp.arange(self.page_table.shape[1] * self.page_size)
        return self.rows_of(self.page_table, slots, dtype)

    def rows_of(
        self, pages: Int[Array, "batch some_pages"], slots: Int[Array, " slots"], dtype: DTypeLike
    ) -> tuple[Float[Array, "batch slots *row"], ...]:
        """Return the rows of these slots, all slots of these pages, in `dtype`, for each pool.

        Rows of slots that no query sees are 0: such a slot may hold NaN, and 0 * NaN is NaN.
        """
        used, found = self.in_use(slots), []
        for pool, scale in zip(self.pools, self.scales, strict=True):
            rows = jnp.take(pool, pages, axis=0, mode="clip")
            rows = rows.reshape(*used.shape, *pool.shape[2:])
            rows = jnp.where(jnp.expand_dims(used, tuple(range(2, rows.ndim))), rows, 0)
            found.append(scaled(rows, scale, dtype))
        return tuple(found)

    def check(self, operation: str, q: Float[Array, "batch q_len heads dim"]) -> None:
        """Raise ValueError if positions, pages, ancestors or scales do not fit the queries q."""
        if self.positions.shape != q.shape[:2] or self.page_table.shape[0] != q.shape[0]:
            raise ValueError(
                f"{operation}: queries are {q.shape[:2]} (batch, q_len), positions "
                f"{self.positions.shape}, page_table {self.page_table.shape}"
            )
        if self.ancestors is not None and self.ancestors.shape[:2] != q.shape[:2]:
            raise ValueError(
                f"{operation}: queries are {q.shape[:2]} (batch, q_len), "
                f"ancestors {self.ancestors.shape}; expected (batch, q_len, nodes)"
            )
        if len(self.scales) != len(self.pools):
            raise ValueError(
                f"{operation}: expected a scale or None for each of {len(self.pools)} pools, got "
                f"{len(self.scales)}"
            )
        for pool, scale in zip(self.pools, self.scales, strict=True):
            check_scale(operation, pool, scale)


def visible_slots(
    slots: Int[Array, " slots"],
    positions: Int[Array, "sequences rows"],
    ancestors: Bool[Array, "sequences rows nodes"] | None,
) -> Bool[Array, "sequences rows slots"]:
    """Return the visible slots: those up to a row's position, and the row's ancestors among the
    tree nodes in the slots after it."""
    known = slots <= positions[..., None]
    if ancestors is None:
        return known
    nodes = ancestors.shape[-1]
    node = slots - positions[..., None] - 1
    seen = jnp.take_along_axis(ancestors, jnp.clip(node, 0, nodes - 1), axis=-1)
    return known | (seen & (node >= 0) & (node < nodes))


def scaled(
    stored: Float[Array, "..."], scale: Float[Array, ""] | None, dtype: DTypeLike
) -> Float[Array, "..."]:
    """Return stored values times the scale in the queries' dtype; unchanged without a scale."""
    if scale is None:
        return stored
    return (stored.astype(jnp.float32) * scale).astype(dtype)


def as_factor(scale: Float[Array, ""] | None) -> Float[Array, "1"]:
    """Return the scale as kernels load it, 1 for None."""
    return jnp.ones(1) if scale is None else scale.reshape(1)


def check_scale(
    operation: str, pool: Float[Array, "pages page_size ..."], scale: Float[Array, ""] | None
) -> None:
    """Raise ValueError if a float8 pool has no scale."""
    if pool.dtype.itemsize == 1 and scale is None:
        raise ValueError(f"{operation}: a pool of {pool.dtype} needs its scale, got none")
