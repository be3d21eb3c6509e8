"""Cache write of grouped-query attention: norm, rotation and pool write in one launch."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import Operation
from pallas_kernels.paged.kernel import padded
from pallas_kernels.paged.kv import as_factor, check_scale
from pallas_kernels.paged.rows import (
    as_stored,
    contain_nonfinite,
    number,
    refuse_rows,
    saturated,
    scatter_rows,
)
from pallas_kernels.partial_sums import Product, as_parts, load_total, total
from pallas_kernels.rms_norm import Norm, norm_by
from pallas_kernels.rotation import rotate_halves
from pallas_kernels.triton import launch, load, store


class HeadNorms(NamedTuple):
    """Norms over the heads of all devices. q, k: weights of this device's heads. squares: sums from
    `head_squares`, added over the `devices`, which hold equally many heads."""

    q: Norm
    k: Norm
    squares: Float[Array, "batch q_len 2"]
    devices: int


class HeadRows(NamedTuple):
    """Rows of one step: arguments of `cache_heads`, or refs of heads [parts, rows, heads,
    head_dim], cos and sin [rows, half], pages and offsets [rows], scales [1], squares [rows, 2] and
    weights."""

    q: Any
    k: Any
    v: Any
    cos: Any
    sin: Any
    pages: Any
    offsets: Any
    k_scale: Any
    v_scale: Any
    norms: Any


def cache_heads(
    q: Product,
    k: Product,
    v: Product,
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
    k_pool: Float[Array, "pages page_size kv_heads head_dim"],
    v_pool: Float[Array, "pages page_size kv_heads head_dim"],
    pages: Int[Array, "batch q_len"],
    offsets: Int[Array, "batch q_len"],
    *,
    norms: HeadNorms | None = None,
    k_scale: Float[Array, ""] | None = None,
    v_scale: Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> tuple[
    Float[Array, "batch q_len heads head_dim"],
    Float[Array, "pages page_size kv_heads head_dim"],
    Float[Array, "pages page_size kv_heads head_dim"],
]:
    """Norm and rotate queries and keys, and write keys and values into paged pools.

    q, k and v [batch, q_len, width] hold all heads and may be `PartialSums`. Queries and keys are
    normed if `norms` is given, then rotated by cos and sin (float32) on the first 2 * half
    dimensions of each head, with pairs (i, i + half). Each row of k and v goes to (page, offset);
    if several rows go to one place, any of them may remain. Float8 pools hold rows divided by their
    scale. A row with non-finite values is stored with NaN keys and zero values.
    Returns the queries for attention and the updated pools. Raises ValueError on shapes that do not
    fit and on an implementation that cannot run.
    """
    kv_heads, head_dim = k_pool.shape[2:]
    width = kv_heads * head_dim
    if k_pool.shape != v_pool.shape or k.shape[-1] != width or v.shape[-1] != width:
        raise ValueError(
            f"cache_heads: expected rows of {kv_heads} heads of {head_dim}, as the pool of keys "
            f"has; got k {k.shape}, v {v.shape}, pools {k_pool.shape}, {v_pool.shape}"
        )
    if q.shape[-1] % head_dim or 2 * cos.shape[-1] > head_dim:
        raise ValueError(
            f"cache_heads: expected queries of whole heads of {head_dim} and tables for at most "
            f"half of one, got q {q.shape} and cos {cos.shape}"
        )
    check_scale("cache_heads", k_pool, k_scale)
    check_scale("cache_heads", v_pool, v_scale)
    rows = HeadRows(q, k, v, cos, sin, pages, offsets, k_scale, v_scale, norms)
    return CACHE_HEADS(implementation, rows, k_pool, v_pool)


def _reference(rows: HeadRows, k_pool: Array, v_pool: Array) -> tuple[Array, Array, Array]:
    *products, cos, sin, pages, offsets, k_scale, v_scale, norms = rows
    q, k, v = map(total, products)
    if norms is not None:
        q, k = norm_heads(q, k, norms)
    q, k, v = (x.reshape(*x.shape[:2], -1, k_pool.shape[-1]) for x in (q, k, v))
    q, k = rotate_halves(q, cos, sin), rotate_halves(k, cos, sin)
    keys, values = as_stored(k, k_scale), as_stored(contain_nonfinite(k, v), v_scale)
    return (
        q,
        scatter_rows(k_pool, keys, pages, offsets),
        scatter_rows(v_pool, values, pages, offsets),
    )


def norm_heads(
    q: Float[Array, "*rows q_width"], k: Float[Array, "*rows k_width"], norms: HeadNorms
) -> tuple[Float[Array, "*rows q_width"], Float[Array, "*rows k_width"]]:
    """Norm queries and keys by the mean square over the heads of all devices."""
    squares = norms.squares[..., 0], norms.squares[..., 1]
    q_mean, k_mean = (
        total / (norms.devices * rows.shape[-1])
        for total, rows in zip(squares, (q, k), strict=True)
    )
    return norm_by(q, norms.q, q_mean), norm_by(k, norms.k, k_mean)


def _refuse(rows: HeadRows, k_pool: Array, v_pool: Array) -> str | None:
    return refuse_rows(k_pool, rows.q, rows.k, rows.v)


def _launch(rows: HeadRows, k_pool: Array, v_pool: Array) -> tuple[Array, Array, Array]:
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
        partial(_cache_head, eps=eps, devices=devices),
        name="cache_heads",
        grid=(count, heads + kv_heads),
        out_shape=(turned, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), pools)),
        num_warps=1,
        input_output_aliases={before: 1, before + 1: 2},
    )(step, pools)
    return turned.reshape(batch, q_len, -1, head_dim), k_pool, v_pool


class _Head(NamedTuple):
    """One head of one row in `ref` [parts, rows, heads, head_dim]; dtype: that of the sum."""

    ref: Any
    dtype: DTypeLike
    row: Array
    head: Array

    def load(self, column: Array, exists: Array) -> Array:
        """Load the given columns of the head as float32."""
        at = (*(jnp.broadcast_to(x, column.shape) for x in (self.row, self.head)), column)
        return load_total(self.ref, self.dtype, at, exists)


class _Part(NamedTuple):
    """Values of some columns of a head."""

    column: Array
    exists: Array
    values: Array


def _cache_head(
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
        for part in _turn(_Head(step.q, dtype, row, head), step, norm(0, step.q)):
            _store(turned, (row, head), part)

    @pl.when(head >= heads)
    def _() -> None:
        own = head - heads
        key = _turn(_Head(step.k, dtype, row, own), step, norm(1, step.k))
        place = number(step.pages, row), number(step.offsets, row), own
        both = key, [_value(_Head(step.v, dtype, row, own), key[0])]
        for pool, scale, parts in zip(pools, (step.k_scale, step.v_scale), both, strict=True):
            factor = number(scale, 0)
            for part in parts:
                stored = saturated(part.values, pool.dtype, factor)
                _store(pool, place, part._replace(values=stored))


def _turn(x: _Head, step: HeadRows, norm: tuple[Array, Any] | None) -> list[_Part]:
    """Norm and rotate a head: its two rotated halves, and the dimensions after them."""
    dim, half = x.ref.shape[-1], step.cos.shape[1]
    pair = jnp.arange(padded(half))
    is_pair = pair < half
    low, high = (_normed(x, norm, start + pair, is_pair) for start in (0, half))
    at = jnp.broadcast_to(x.row, pair.shape), pair
    cos, sin = (load(table.at[at], mask=is_pair, other=0.0) for table in (step.cos, step.sin))
    parts = [
        _Part(pair, is_pair, (low * cos - high * sin).astype(x.dtype)),
        _Part(half + pair, is_pair, (high * cos + low * sin).astype(x.dtype)),
    ]
    if dim > 2 * half:
        column = 2 * half + jnp.arange(padded(dim - 2 * half))
        passed = _normed(x, norm, column, column < dim).astype(x.dtype)
        parts.append(_Part(column, column < dim, passed))
    return parts


def _normed(x: _Head, norm: tuple[Array, Any] | None, column: Array, exists: Array) -> Array:
    """Load and norm columns of a head as float32, rounding as `pallas_kernels.rms_norm` does."""
    values = x.load(column, exists)
    if norm is None:
        return values
    root, weight = norm
    own = load(weight.at[x.head * x.ref.shape[-1] + column], mask=exists, other=0.0)
    return (own * (values * root).astype(x.dtype)).astype(jnp.float32)


def _value(x: _Head, key: _Part) -> _Part:
    """Load the value head: zeros if the row's key is NaN (`paged.rows.contain_nonfinite`)."""
    column = jnp.arange(padded(x.ref.shape[-1]))
    exists = column < x.ref.shape[-1]
    first = jnp.sum(jnp.where(key.column == 0, key.values.astype(jnp.float32), 0.0))
    values = jnp.where(first != first, 0.0, x.load(column, exists))
    return _Part(column, exists, values.astype(x.dtype))


def _store(out: Any, place: tuple[Array, ...], part: _Part) -> None:
    at = (*(jnp.broadcast_to(x, part.column.shape) for x in place), part.column)
    store(out.at[at], part.values, mask=part.exists)


CACHE_HEADS = Operation("cache_heads", reference=_reference, pallas=_launch, refuse=_refuse)
