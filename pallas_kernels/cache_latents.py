"""Cache write of latent attention: norm, rotation and pool write in one launch."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import Operation
from pallas_kernels.fp8_matmul.quantize import fp8_rows, to_fp8_runs
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
from pallas_kernels.quantized import QuantFormat, QuantizedRows, Rows
from pallas_kernels.rms_norm import Norm, rms_norm
from pallas_kernels.rotation import rotate_interleaved
from pallas_kernels.triton import launch, load, store


class LatentRows(NamedTuple):
    """Rows of one step: arguments of `cache_latents`, or refs of compressed and q_low [parts,
    rows, numbers], cos and sin [rows, numbers], pages and offsets [rows], scale [1] and norm
    weights."""

    compressed: Any
    cos: Any
    sin: Any
    pages: Any
    offsets: Any
    norm: Any
    scale: Any
    q_low: Any
    q_norm: Any


def cache_latents(
    compressed: Product,
    norm: Norm,
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
    pool: Float[Array, "pages page_size width"],
    pages: Int[Array, "batch q_len"],
    offsets: Int[Array, "batch q_len"],
    *,
    q_low: Product | None = None,
    q_norm: Norm | None = None,
    q_format: QuantFormat | None = None,
    kv_scale: Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> tuple[Float[Array, "pages page_size width"], Rows | None]:
    """Norm latents, rotate keys and write both into a paged pool; optionally norm low-rank queries.

    compressed [batch, q_len, width] and q_low [batch, q_len, q_lora] may be `PartialSums`. A row of
    compressed is a latent, which is normed, and a key, which is rotated in adjacent pairs by cos
    and sin (float32). It goes to (page, offset); if several rows go to one place, any of them may
    remain. A float8 pool holds rows divided by kv_scale. A row with non-finite values is stored
    with a NaN key and a zero latent.
    q_low and q_norm: low-rank queries, if the model has them; they are normed in the same launch.
    q_format: format of the kernel that multiplies them next. If that takes float8 rows, this kernel
    quantises them.
    Returns the updated pool and the normed queries. Raises ValueError on shapes that do not fit and
    on an implementation that cannot run.
    """
    width = norm.weight.shape[0] + 2 * cos.shape[-1]
    if compressed.shape[-1] != width or pool.shape[-1] != width:
        raise ValueError(
            f"cache_latents: rows are {norm.weight.shape[0]} + {2 * cos.shape[-1]} values; "
            f"compressed has {compressed.shape[-1]}, the pool {pool.shape[-1]}"
        )
    if (q_low is None) != (q_norm is None):
        raise ValueError("cache_latents: q_low and q_norm come together, got one of them")
    check_scale("cache_latents", pool, kv_scale)
    rows = LatentRows(compressed, cos, sin, pages, offsets, norm, kv_scale, q_low, q_norm)
    return CACHE_LATENTS(implementation, rows, pool, q_format)


def _reference(
    rows: LatentRows, pool: Array, q_format: QuantFormat | None
) -> tuple[Array, Rows | None]:
    """Leave the quantisation of the queries to the product that follows."""
    latent, key = jnp.split(total(rows.compressed), [rows.norm.weight.shape[0]], axis=-1)
    key = rotate_interleaved(key[:, :, None], rows.cos, rows.sin)[:, :, 0]
    latent = rms_norm(latent, rows.norm)
    # The latent is both key and value; the rotated part is key only.
    row = jnp.concatenate([contain_nonfinite(key, latent), key], axis=-1)
    pool = scatter_rows(pool, as_stored(row, rows.scale), rows.pages, rows.offsets)
    return pool, None if rows.q_low is None else rms_norm(total(rows.q_low), rows.q_norm)


def _refuse(rows: LatentRows, pool: Array, q_format: QuantFormat | None) -> str | None:
    return refuse_rows(pool, rows.compressed)


def _launch(
    rows: LatentRows, pool: Array, q_format: QuantFormat | None
) -> tuple[Array, Rows | None]:
    (batch, q_len, width), dtype, q_low = rows.compressed.shape, rows.compressed.dtype, rows.q_low
    count = batch * q_len
    step = LatentRows(
        as_parts(rows.compressed, count, width),
        *[x.reshape(count, -1) for x in (rows.cos, rows.sin)],
        *[x.reshape(count) for x in (rows.pages, rows.offsets)],
        norm=rows.norm.weight,
        scale=as_factor(rows.scale),
        q_low=None if q_low is None else as_parts(q_low, count, q_low.shape[-1]),
        q_norm=rows.q_norm and rows.q_norm.weight,
    )
    normed = None if q_low is None else jax.ShapeDtypeStruct((count, q_low.shape[-1]), dtype)
    in_fp8 = q_format is not None and q_format.activations == "fp8_token"
    if normed is not None and in_fp8:
        normed = fp8_rows(*normed.shape, grouped=False).out
    pool, normed = launch(
        partial(_run, eps=(rows.norm.eps, rows.q_norm.eps if rows.q_norm else 0.0), dtype=dtype),
        name="cache_latents",
        # One program writes a row, a second one norms its query.
        grid=(count, 1 if q_low is None else 2),
        out_shape=(jax.ShapeDtypeStruct(pool.shape, pool.dtype), normed),
        input_output_aliases={len(jax.tree.leaves(step)): 0},
    )(step, pool)
    if q_low is None or not in_fp8:
        return pool, None if q_low is None else normed.reshape(q_low.shape)
    values, factors = (array.reshape(*q_low.shape[:2], *array.shape[1:]) for array in normed)
    return pool, QuantizedRows(values, factors, dtype)


def _run(
    step: LatentRows, _: Any, pool: Any, normed: Any, *, eps: tuple[float, float], dtype: DTypeLike
) -> None:
    """Kernel body: write a row into the pool (program 0 of a row) or norm its query (program 1).

    Grid: rows x 1, or x 2 with queries. Blocks: all arrays whole; a program loads one row of each
    part of a product and adds the parts; the pool is written in place. Limit: launches, not work.
    Units: float32 inside, products rounded to dtype; the pool holds numbers divided by its scale;
    pages and offsets count pages and slots.
    """
    row = pl.program_id(0)

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        _cache_row(step, pool, row, eps[0], dtype)

    if step.q_low is not None:

        @pl.when(pl.program_id(1) == 1)
        def _() -> None:
            _norm_query(step, normed, row, eps[1], dtype)


def _norm_query(step: LatentRows, out: Any, row: Array, eps: float, dtype: DTypeLike) -> None:
    """Norm a low-rank query. `out` is the ref of the rows, or refs of float8 rows and scales."""
    weight = step.q_norm
    column = jnp.arange(padded(weight.shape[0]))
    mask, at = column < weight.shape[0], (jnp.full_like(column, row), column)
    low = load_total(step.q_low, dtype, at, mask)
    found = _norm(low, weight, column, mask, eps, dtype)
    if not isinstance(out, tuple):
        store(out.at[at], found, mask=mask)
        return
    values, scale = to_fp8_runs(found.astype(jnp.float32)[None, :])
    store(out[0].at[at], values.reshape(-1), mask=mask)
    store(out[1].at[jnp.broadcast_to(row, (1,))], scale)


def _cache_row(step: LatentRows, pool: Any, row: Array, eps: float, dtype: DTypeLike) -> None:
    kv_lora, half = step.norm.shape[0], step.cos.shape[1]

    def of_row(column: Array, mask: Array) -> Array:
        return load_total(step.compressed, dtype, (jnp.full_like(column, row), column), mask)

    column, pair = jnp.arange(padded(kv_lora)), jnp.arange(padded(half))
    is_column, is_pair = column < kv_lora, pair < half
    even, odd = (of_row(kv_lora + 2 * pair + place, is_pair) for place in (0, 1))
    table = jnp.full_like(pair, row), pair
    cos, sin = (load(x.at[table], mask=is_pair, other=0.0) for x in (step.cos, step.sin))
    turned = (even * cos - odd * sin).astype(dtype), (odd * cos + even * sin).astype(dtype)
    normed = _norm(of_row(column, is_column), step.norm, column, is_column, eps, dtype)
    first = jnp.sum(jnp.where(pair == 0, turned[0].astype(jnp.float32), 0.0))
    normed = jnp.where(first != first, jnp.zeros_like(normed), normed)
    scale = number(step.scale, 0)
    where = number(step.pages, row), number(step.offsets, row)
    for at, mask, values in (
        (column, is_column, normed),
        (kv_lora + 2 * pair, is_pair, turned[0]),
        (kv_lora + 2 * pair + 1, is_pair, turned[1]),
    ):
        there = tuple(jnp.broadcast_to(x, at.shape) for x in where)
        store(pool.at[(*there, at)], saturated(values, pool.dtype, scale), mask=mask)


def _norm(values: Array, weight: Any, column: Array, mask: Array, eps: float, dtype: Any) -> Array:
    """Compute `pallas_kernels.rms_norm`: rounded to the run dtype before the weight."""
    root = jax.lax.rsqrt(jnp.sum(values * values) / weight.shape[0] + eps)
    return load(weight.at[column], mask=mask, other=0.0) * (values * root).astype(dtype)


CACHE_LATENTS = Operation("cache_latents", reference=_reference, pallas=_launch, refuse=_refuse)
