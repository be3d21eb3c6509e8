"""Addresses in pools that no test could allocate, read off the IR that XLA compiles."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
BF16, FP8 = jnp.bfloat16, jnp.float8_e4m3fn
ELEMENTS = {BF16: "bf16", FP8: "f8E4M3FN"}


class Access(NamedTuple):
    """A kernel's access to pools: what it is called with before them, a pool's row, and the blocks
    of elements in its IR that are addressed in a pool."""

    name: str
    call: Callable[..., Any]
    before: tuple[jax.ShapeDtypeStruct, ...]
    row: tuple[int, ...]
    block: str


def shape(dtype: Any, *dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype)


def reading(
    name: str, operation: Any, queries: list[tuple[int, ...]], row: tuple[int, ...], block: str
) -> Access:
    def call(*arrays: Any) -> Any:
        *asked, pool, table, positions, scale = arrays
        pools = 2 if len(row) == 2 else 1
        paged = PagedKV((pool,) * pools, (scale,) * pools, table, positions)
        return operation(*asked, paged, 1.0, implementation="pallas")

    return Access(name, call, tuple(shape(BF16, *dims) for dims in queries), row, block)


def write_latents(rows: Any, weight: Any, table: Any, pool: Any, *places: Any) -> Any:
    _, place, scale = places
    arrays = Norm(weight, 1e-6), table, table, pool, place, place
    return cache_latents(rows, *arrays, kv_scale=scale, implementation="pallas")


def write_heads(rows: Any, table: Any, pool: Any, *places: Any) -> Any:
    _, place, scale = places
    arrays = rows, rows, rows, table, table, pool, pool, place, place
    scales = {"k_scale": scale, "v_scale": scale}
    return cache_heads(*arrays, **scales, implementation="pallas")


def float32(*sizes: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(shape(jnp.float32, SEQUENCES, 1, size) for size in sizes)


KERNELS = dict.fromkeys(("key_kernel", "value_kernel"), jnp.zeros((8, 512, 128), BF16))
chunk = partial(mla_prefill, **KERNELS)
LATENT, WIDE, CHUNK = (512, 64), (576,), [(2, 1, 8, 128), (2, 1, 8, 64)]
MLA, GQA = [(2, 1, 64, size) for size in LATENT], [(2, 1, 16, 128)]
SHARED_MLA, SHARED_GQA = [(8, 2, 1, 8, size) for size in LATENT], [(2, 2, 1, 3, 128)]
ROWS, WEIGHT, TABLE = (*float32(576), shape(jnp.float32, 512), *float32(32))
ACCESSES = [
    reading("mla_decode", mla_decode, MLA, WIDE, r"16x\d+"),
    reading("gqa_decode", gqa_decode, GQA, (16, 128), r"32x\d+"),
    reading("mla_share_parts", attend_share, SHARED_MLA, WIDE, r"16x\d+"),
    reading("gqa_share", gqa_share, SHARED_GQA, (1, 128), r"32x\d+"),
    reading("mla_prefill_expand", chunk, CHUNK, WIDE, "64x64"),
    reading("mla_prefill", chunk, CHUNK, WIDE, "32x64"),
    Access("cache_latents", write_latents, (ROWS, WEIGHT, TABLE), WIDE, r"\d+"),
    Access("cache_heads", write_heads, float32(16 * 128, 64), (16, 128), r"\d+"),
]
DTYPES = [FP8, BF16, BF16, FP8, FP8, FP8, FP8, BF16]
"""Those that are not long."""


def offset_bits(access: Access, dtype: Any, pages: int) -> set[str]:
    pool = shape(dtype, pages, PAGE_SIZE, *access.row)
    table, place = shape(jnp.int32, SEQUENCES, 8), shape(jnp.int32, SEQUENCES, 1)
    arrays = *access.before, pool, table, place, shape(jnp.float32)
    with gpu.assume("gfx950", compiling=True):
        ir = triton_ir(access.call, *arrays, name=access.name)["ir"]
    form = rf"tensor<{access.block}x!tt\.ptr<{ELEMENTS[dtype]}>>, tensor<{access.block}xi(\d+)>"
    return set(re.findall(form, ir))


@pytest.mark.parametrize(
    ("access", "dtype"),
    sweep(
        [(access, dtype) for access in ACCESSES for dtype in (BF16, FP8)],
        list(zip(ACCESSES, DTYPES, strict=True)),
    ),
    ids=lambda given: given.name if isinstance(given, Access) else None,
)
def test_offsets_have_64_bits_where_a_pool_has_more_than_2_to_31_elements(
    access: Access, dtype: Any
) -> None:
    pages = 2**31 // (PAGE_SIZE * math.prod(access.row))
    assert offset_bits(access, dtype, pages) == {"32"}
    assert offset_bits(access, dtype, pages + 1) == {"64"}
