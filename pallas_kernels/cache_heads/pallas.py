"""GPU kernel of `cache_heads`: one launch, a program for each row and head."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from pallas_kernels.cache_heads.rows import Cached, HeadPool, HeadRows
from pallas_kernels.paged.kernel import padded
from pallas_kernels.paged.kv_scale import as_factor
from pallas_kernels.paged.pool_row import as_stored, number
from pallas_kernels.partial_sums import as_parts, load_total
from pallas_kernels.triton import launch, load, store


def cache_heads(rows: HeadRows, k_pool: HeadPool, v_pool: HeadPool) -> Cached:
    """Implement `pallas_kernels.cache_heads.api.cache_heads` as a GPU kernel."""
    (batch, q_len, width), norms, (*_, kv_heads, head_dim) = rows.q.shape, rows.norms, k_pool.shape
    count, heads, dtype = batch * q_len, width // head_dim, rows.q.dtype
    step = HeadRows._make(
        [
            *[as_parts(x, count, x.shape[-1] // head_dim, head_dim) for x in rows[:3]],
            *[x.reshape(count, -1) for x in rows[3:5]],
            *[x.reshape(count) for x in rows[5:7]],
            *map(as_factor, rows[7:9]),
            norms and (norms.squares.reshape(count, 2), norms.q.weight, norms.k.weight),
        ]
    )
    eps, devices = ((norms.q.eps, norms.k.eps), norms.devices) if norms else ((0.0, 0.0), 1)
    pools, before = (k_pool, v_pool), len(jax.tree.leaves(step))
    turned = jax.ShapeDtypeStruct((count, heads, head_dim), dtype)
    turned, (k_pool, v_pool) = launch(
        partial(_run, eps=eps, devices=devices),
        name="cache_heads",
        grid=(count, heads + kv_heads),
        out_shape=(turned, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), pools)),
        num_warps=1,
        input_output_aliases={before: 1, before + 1: 2},
    )(step, pools)
    return turned.reshape(batch, q_len, -1, head_dim), k_pool, v_pool


class Head(NamedTuple):
    """One head of one row in `ref` [parts, rows, heads, head_dim]; dtype: that of the sum."""

    ref: Any
    dtype: DTypeLike
    row: Array
    head: Array

    def load(self, column: Array, exists: Array) -> Array:
        """Load the given columns of the head as float32."""
        at = (*(jnp.broadcast_to(x, column.shape) for x in (self.row, self.head)), column)
        return load_total(self.ref, self.dtype, at, exists)


class Part(NamedTuple):
    """Values of some columns of a head."""

    column: Array
    exists: Array
    values: Array


def _run(
    step: HeadRows, _: Any, turned: Any, pools: Any, *, eps: tuple[float, float], devices: int
) -> None:
    """Kernel body: rotate a query head, or rotate a key head and store it with its value.

    Grid: rows x (query heads + kv heads). Blocks: all arrays whole; a program loads head_dim
    numbers of each, from every part of a product, and adds the parts; the pools are written in
    place. Limit: launches, not work: one warp. Units: float32 between norm and rotation; pools hold
    numbers divided by their scale; pages and offsets count pages and slots.
    """
    row, head = pl.program_id(0), pl.program_id(1)
    heads, dtype = turned.shape[1], turned.dtype

    def norm(side: int, rows: Any) -> tuple[Array, Any] | None:
        """Return the factor that norms queries (side 0) or keys (side 1), and their weight."""
        if step.norms is None:
            return None
        squares, *weights = step.norms
        mean = number(squares, row, side) / (devices * rows.shape[2] * rows.shape[3])
        return jax.lax.rsqrt(mean + eps[side]), weights[side]

    @pl.when(head < heads)
    def _() -> None:
        for part in _turn(Head(step.q, dtype, row, head), step, norm(0, step.q)):
            _store(turned, (row, head), part)

    @pl.when(head >= heads)
    def _() -> None:
        own = head - heads
        key = _turn(Head(step.k, dtype, row, own), step, norm(1, step.k))
        place = number(step.pages, row), number(step.offsets, row), own
        both = key, [_value(Head(step.v, dtype, row, own), key[0])]
        for pool, scale, parts in zip(pools, (step.k_scale, step.v_scale), both, strict=True):
            factor = number(scale, 0)
            for part in parts:
                stored = as_stored(part.values, pool.dtype, factor)
                _store(pool, place, part._replace(values=stored))


def _turn(x: Head, step: HeadRows, norm: tuple[Array, Any] | None) -> list[Part]:
    """Norm and rotate a head: its two rotated halves, and the dimensions after them."""
    dim, half = x.ref.shape[-1], step.cos.shape[1]
    pair = jnp.arange(padded(half))
    is_pair = pair < half
    low, high = (_normed(x, norm, start + pair, is_pair) for start in (0, half))
    at = jnp.broadcast_to(x.row, pair.shape), pair
    cos, sin = (load(table.at[at], mask=is_pair, other=0.0) for table in (step.cos, step.sin))
    parts = [
        Part(pair, is_pair, (low * cos - high * sin).astype(x.dtype)),
        Part(half + pair, is_pair, (high * cos + low * sin).astype(x.dtype)),
    ]
    if dim > 2 * half:
        column = 2 * half + jnp.arange(padded(dim - 2 * half))
        passed = _normed(x, norm, column, column < dim).astype(x.dtype)
        parts.append(Part(column, column < dim, passed))
    return parts


def _normed(x: Head, norm: tuple[Array, Any] | None, column: Array, exists: Array) -> Array:
    """Load and norm columns of a head as float32, rounding as `pallas_kernels.rms_norm` does."""
    values = x.load(column, exists)
    if norm is None:
        return values
    root, weight = norm
    own = load(weight.at[x.head * x.ref.shape[-1] + column], mask=exists, other=0.0)
    return (own * (values * root).astype(x.dtype)).astype(jnp.float32)


def _value(x: Head, key: Part) -> Part:
    """Load the value head: zeros if the row's key is NaN (`paged.rows.contain_nonfinite`)."""
    column = jnp.arange(padded(x.ref.shape[-1]))
    exists = column < x.ref.shape[-1]
    first = jnp.sum(jnp.where(key.column == 0, key.values.astype(jnp.float32), 0.0))
    values = jnp.where(first != first, 0.0, x.load(column, exists))
    return Part(column, exists, values.astype(x.dtype))


def _store(out: Any, place: tuple[Array, ...], part: Part) -> None:
    at = (*(jnp.broadcast_to(x, part.column.shape) for x in place), part.column)
    store(out.at[at], part.values, mask=part.exists)
