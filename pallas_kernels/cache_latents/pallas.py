"""Norm, rotation and the write into the pool in one launch, a program a row."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int

from pallas_kernels.fp8_matmul.quantize import fp8_rows, to_fp8_runs
from pallas_kernels.paged.kernel import padded
from pallas_kernels.paged.pool_row import as_stored, number
from pallas_kernels.quantized import QuantFormat, QuantizedRows, Rows
from pallas_kernels.rms_norm import Norm
from pallas_kernels.triton import launch, load, store, whole


def cache_latents(
    compressed: Float[Array, "batch q_len width"],
    norm: Norm,
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
    pool: Float[Array, "pages page_size width"],
    pages: Int[Array, "batch q_len"],
    offsets: Int[Array, "batch q_len"],
    *,
    q_low: Float[Array, "batch q_len q_lora"] | None = None,
    q_norm: Norm | None = None,
    q_format: QuantFormat | None = None,
    kv_scale: Float[Array, ""] | None = None,
) -> tuple[Float[Array, "pages page_size width"], Rows | None]:
    """See `pallas_kernels.cache_latents.api.cache_latents`."""
    rows = compressed.shape[0] * compressed.shape[1]
    scale = jnp.ones(1) if kv_scale is None else kv_scale.reshape(1)
    compressed, cos, sin = (x.reshape(rows, -1) for x in (compressed, cos, sin))
    latents = Latents(
        compressed, cos, sin, pages.reshape(rows), offsets.reshape(rows), norm.weight, scale
    )
    queries = None if q_low is None or q_norm is None else (q_low.reshape(rows, -1), q_norm.weight)
    normed = jax.tree.map(_shape, queries and queries[0])
    in_fp8 = q_format is not None and q_format.activations == "fp8_token"
    if normed is not None and in_fp8:
        normed = fp8_rows(*normed.shape, grouped=False).out
    pool, normed = launch(
        partial(_run, eps=(norm.eps, q_norm.eps if q_norm else 0.0)),
        name="cache_latents",
        # A program writes a row, another one norms its query.
        grid=(rows, 1 if queries is None else 2),
        in_specs=jax.tree.map(whole, (latents, queries, pool)),
        out_specs=jax.tree.map(whole, (pool, normed)),
        out_shape=(_shape(pool), normed),
        input_output_aliases={len(jax.tree.leaves((latents, queries))): 0},
    )(latents, queries, pool)
    if q_low is None or not in_fp8:
        return pool, None if q_low is None else normed.reshape(q_low.shape)
    values, factors = (array.reshape(*q_low.shape[:2], *array.shape[1:]) for array in normed)
    return pool, QuantizedRows(values, factors, q_low.dtype)


class Latents(NamedTuple):
    """Rows to write, as arrays or as a kernel's refs of them."""

    compressed: Any
    cos: Any
    sin: Any
    page: Any
    offset: Any
    weight: Any
    scale: Any


def _shape(array: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _run(
    latents: Latents, queries: Any, _: Any, pool: Any, normed: Any, *, eps: tuple[float, float]
) -> None:
    """A row of the pool (program 0 of the row), or its low rank of the queries normed (program 1).

    Grid: rows x 1, or x 2 with queries. Blocks: all arrays whole, a program loads one row; the pool
    is written in place. Limit: launches, not work: 27 registers. Units: float32 inside; the pool in
    numbers divided by its scale; pages and offsets count pages and slots.
    """
    row = pl.program_id(0)

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        _cache_row(latents, pool, row, eps[0])

    if queries is not None:

        @pl.when(pl.program_id(1) == 1)
        def _() -> None:
            low, weight = queries
            _norm_query(low, weight, normed, row, eps[1])


def _norm_query(low: Any, weight: Any, out: Any, row: Array, eps: float) -> None:
    """out: refs of the normed rows, or of their float8 and its scales."""
    column = jnp.arange(padded(weight.shape[0]))
    mask = column < weight.shape[0]
    found = _norm(_values(low, row, column, mask), weight, column, mask, eps, low.dtype)
    at = jnp.full_like(column, row), column
    if not isinstance(out, tuple):
        store(out.at[at], found, mask=mask)
        return
    values, scale = to_fp8_runs(found.astype(jnp.float32)[None, :])
    store(out[0].at[at], values.reshape(-1), mask=mask)
    store(out[1].at[jnp.broadcast_to(row, (1,))], scale)


def _cache_row(latents: Latents, pool: Any, row: Array, eps: float) -> None:
    kv_lora, half = latents.weight.shape[0], latents.cos.shape[1]
    dtype = latents.compressed.dtype
    column, pair = jnp.arange(padded(kv_lora)), jnp.arange(padded(half))
    is_column, is_pair = column < kv_lora, pair < half
    even = _values(latents.compressed, row, kv_lora + 2 * pair, is_pair)
    odd = _values(latents.compressed, row, kv_lora + 2 * pair + 1, is_pair)
    cos, sin = (_values(table, row, pair, is_pair) for table in (latents.cos, latents.sin))
    turned = (even * cos - odd * sin).astype(dtype), (odd * cos + even * sin).astype(dtype)
    latent = _values(latents.compressed, row, column, is_column)
    normed = _norm(latent, latents.weight, column, is_column, eps, dtype)
    first = jnp.sum(jnp.where(pair == 0, turned[0].astype(jnp.float32), 0.0))
    normed = jnp.where(first != first, jnp.zeros_like(normed), normed)
    scale = number(latents.scale, 0)
    where = number(latents.page, row), number(latents.offset, row)
    for at, mask, values in (
        (column, is_column, normed),
        (kv_lora + 2 * pair, is_pair, turned[0]),
        (kv_lora + 2 * pair + 1, is_pair, turned[1]),
    ):
        there = tuple(jnp.broadcast_to(x, at.shape) for x in where)
        store(pool.at[(*there, at)], as_stored(values, pool.dtype, scale), mask=mask)


def _norm(values: Array, weight: Any, column: Array, mask: Array, eps: float, dtype: Any) -> Array:
    """As `pallas_kernels.rms_norm`: rounded to the run dtype before the weight."""
    root = jax.lax.rsqrt(jnp.sum(values * values) / weight.shape[0] + eps)
    return load(weight.at[column], mask=mask, other=0.0) * (values * root).astype(dtype)


def _values(ref: Any, row: Array, column: Array, mask: Array) -> Array:
    """Of one row, float32."""
    at = jnp.broadcast_to(row, column.shape), column
    return load(ref.at[at], mask=mask, other=0.0).astype(jnp.float32)
