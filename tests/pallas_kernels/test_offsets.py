"""Addresses in pools that no test could allocate, read off the IR that XLA compiles."""

import re
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from sweeps import sweep

from pallas_kernels import (
    PagedKV,
    attend_share,
    cache_heads,
    cache_latents,
    gpu,
    gqa_decode,
    gqa_share,
    mla_decode,
    mla_prefill,
)
from pallas_kernels.rms_norm import Norm
from pallas_kernels.triton import triton_ir

PAGE_SIZE, SEQUENCES = 64, 2


def shape(dtype: Any, *dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def mla_ir(dtype: Any, pages: int) -> str:
    def attend(q: Any, q_rope: Any, pool: Any, table: Any, positions: Any, scale: Any) -> Any:
        paged = PagedKV((pool,), (scale,), table, positions)
        return mla_decode(q, q_rope, paged, 1.0, implementation="pallas")

    heads = SEQUENCES, 1, 64
    queries = shape(jnp.bfloat16, *heads, 512), shape(jnp.bfloat16, *heads, 64)
    return ir_of(attend, "mla_decode", *queries, shape(dtype, pages, PAGE_SIZE, 576))


def gqa_ir(dtype: Any, pages: int) -> str:
    def attend(q: Any, pool: Any, table: Any, positions: Any, scale: Any) -> Any:
        paged = PagedKV((pool, pool), (scale, scale), table, positions)
        return gqa_decode(q, paged, 1.0, implementation="pallas")

    query = shape(jnp.bfloat16, SEQUENCES, 1, 16, 128)
    return ir_of(attend, "gqa_decode", query, shape(dtype, pages, PAGE_SIZE, 16, 128))


def shared_mla_ir(dtype: Any, pages: int) -> str:
    """Of one device's part of a context that eight divide, cut again."""

    def attend(q: Any, q_rope: Any, pool: Any, table: Any, positions: Any, scale: Any) -> Any:
        paged = PagedKV((pool,), (scale,), table, positions)
        return attend_share(q, q_rope, paged, 1.0, implementation="pallas")

    heads = 8, SEQUENCES, 1, 8
    queries = shape(jnp.bfloat16, *heads, 512), shape(jnp.bfloat16, *heads, 64)
    return ir_of(attend, "mla_share_parts", *queries, shape(dtype, pages, PAGE_SIZE, 576))


def shared_gqa_ir(dtype: Any, pages: int) -> str:
    def attend(q: Any, pool: Any, table: Any, positions: Any, scale: Any) -> Any:
        paged = PagedKV((pool, pool), (scale, scale), table, positions)
        return gqa_share(q, paged, 1.0, implementation="pallas")

    query = shape(jnp.bfloat16, 2, SEQUENCES, 1, 3, 128)
    return ir_of(attend, "gqa_share", query, shape(dtype, pages, PAGE_SIZE, 1, 128))


def latents_ir(dtype: Any, pages: int) -> str:
    def write(compressed: Any, weight: Any, table: Any, pool: Any, place: Any, scale: Any) -> Any:
        arrays = Norm(weight, 1e-6), table, table, pool, place, place
        return cache_latents(compressed, *arrays, kv_scale=scale, implementation="pallas")

    rows, table = (shape(jnp.float32, SEQUENCES, 1, size) for size in (576, 32))
    pool = shape(dtype, pages, PAGE_SIZE, 576)
    return written_ir(write, "cache_latents", rows, shape(jnp.float32, 512), table, pool)


def heads_ir(dtype: Any, pages: int) -> str:
    def write(rows: Any, table: Any, pool: Any, place: Any, scale: Any) -> Any:
        arrays = rows, rows, rows, table, table, pool, pool, place, place
        scales = {"k_scale": scale, "v_scale": scale}
        return cache_heads(*arrays, **scales, implementation="pallas")

    rows, table = (shape(jnp.float32, SEQUENCES, 1, size) for size in (16 * 128, 64))
    return written_ir(write, "cache_heads", rows, table, shape(dtype, pages, PAGE_SIZE, 16, 128))


def chunk_ir(name: str, dtype: Any, pages: int) -> str:
    def attend(q: Any, q_rope: Any, kernel: Any, pool: Any, *seen: Any) -> Any:
        kernels = {"key_kernel": kernel, "value_kernel": kernel}
        paged = PagedKV((pool,), (seen[2],), *seen[:2])
        return mla_prefill(q, q_rope, paged, 1.0, **kernels, implementation="pallas")

    queries = (shape(jnp.bfloat16, SEQUENCES, 1, 8, size) for size in (128, 64))
    arrays = shape(jnp.bfloat16, 8, 512, 128), shape(dtype, pages, PAGE_SIZE, 576)
    return ir_of(attend, name, *queries, *arrays)


def written_ir(write: Any, name: str, *arrays: jax.ShapeDtypeStruct) -> str:
    place = shape(jnp.int32, SEQUENCES, 1)
    with gpu.assume("gfx950", compiling=True):
        return triton_ir(write, *arrays, place, shape(jnp.float32), name=name)["ir"]


def ir_of(attend: Any, name: str, *arrays: jax.ShapeDtypeStruct) -> str:
    table, positions = shape(jnp.int32, SEQUENCES, 8), shape(jnp.int32, SEQUENCES, 1)
    with gpu.assume("gfx950", compiling=True):
        return triton_ir(attend, *arrays, table, positions, shape(jnp.float32), name=name)["ir"]


def offset_bits(ir: str, pool: Any) -> set[str]:
    """Of the blocks of keys and values that are read from the pool, where blocks of queries differ;
    or written, where nothing else has the pool's dtype."""
    keys = 16 if "x512x" in ir else 32
    element = {jnp.bfloat16: "bf16", jnp.float8_e4m3fn: "f8E4M3FN"}[pool]
    block = rf"{keys}x\d+" if "_decode" in ir or "_share" in ir else r"\d+"
    form = rf"tt\.addptr .*: tensor<{block}x!tt\.ptr<{element}>>, tensor<{block}xi(\d+)>"
    return set(re.findall(form, ir))


BF16, FP8 = jnp.bfloat16, jnp.float8_e4m3fn
ROWS = {
    **{mla_ir: 576, gqa_ir: 16 * 128, shared_mla_ir: 576, shared_gqa_ir: 128},
    **{latents_ir: 576, heads_ir: 16 * 128},
}
"""Numbers in a row of the pool of each kernel."""


@pytest.mark.parametrize(
    ("ir", "dtype"),
    sweep(
        product(ROWS, [BF16, FP8]),
        [
            *((mla_ir, FP8), (gqa_ir, BF16), (shared_mla_ir, BF16), (shared_gqa_ir, FP8)),
            *((latents_ir, FP8), (heads_ir, BF16)),
        ],
    ),
)
def test_offsets_have_64_bits_where_a_pool_has_more_than_2_to_31_elements(
    ir: Any, dtype: Any
) -> None:
    pages = 2**31 // (PAGE_SIZE * ROWS[ir])
    assert offset_bits(ir(dtype, pages), dtype) == {"32"}
    assert offset_bits(ir(dtype, pages + 1), dtype) == {"64"}


@pytest.mark.parametrize(
    ("name", "block"), [("mla_prefill_expand", "64x64"), ("mla_prefill", "32x64")]
)
def test_so_have_a_chunks(name: str, block: str) -> None:
    """block: of latents that are expanded; of keys' rotated parts."""
    pages = 2**31 // (PAGE_SIZE * 576)
    form = rf"tensor<{block}x!tt\.ptr<f8E4M3FN>>, tensor<{block}xi(\d+)>"
    found = [re.findall(form, chunk_ir(name, jnp.float8_e4m3fn, pages + more)) for more in (0, 1)]
    assert [set(bits) for bits in found] == [{"32"}, {"64"}]
