"""Cases of `attend_share` and `share_values`: all 64 heads attend to each context part."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.case import ARCHS, Case
from pallas_kernels.mla_decode.cases import SCALE, VALUE
from pallas_kernels.mla_share import pallas, reference, values
from pallas_kernels.mla_share.layout import MASS, pack
from pallas_kernels.paged.case import LONG, PagedCase
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.quantized.examples import matrix_instruction
from pallas_kernels.shapes import LATENT_ATTENTION, LatentAttention

ALL_HEADS, LONGEST = 64, 100 * 1024
"""Kimi-K2.5's heads; slots of the longest timed contexts."""


def cases() -> list[Case]:
    """Return cases at TP4 and TP8: all heads at a part of 8.7K or 100K slots, and the join."""
    shared = [shape for shape in LATENT_ATTENTION if shape.heads < ALL_HEADS]
    steps = [share_case(shape, paged) for shape in shared for paged in _parts(groups_of(shape))]
    return steps + [values_case(shape, rows) for shape in shared for rows in (16, 64, 256)]


def groups_of(shape: LatentAttention) -> int:
    """Return the number of devices that share the heads and the context."""
    return ALL_HEADS // shape.heads


def _parts(groups: int) -> Iterator[PagedCase]:
    for q_len in (1, 4):
        for context in (LONG // groups, LONGEST // groups):
            yield from (PagedCase(q_len, context, batch=batch) for batch in (16, 64))
        # A batch for which every GPU splits the context, with its tiles of 32 or 64 rows.
        yield PagedCase(q_len, LONG // groups, fp8=True, batch=16 if q_len == 1 else 8)


def share_case(
    shape: LatentAttention,
    paged: PagedCase,
    groups: int | None = None,
    kernels: tuple[str, ...] | None = None,
) -> Case:
    """Build the case of all devices' heads and one device's part of the context."""
    groups = groups or groups_of(shape)
    width, rows = shape.kv_lora + shape.rope, groups * paged.q_len * shape.heads
    slots = paged.batch * paged.context

    def example(seed: int) -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(seed), 4)
        dims = paged.batch, paged.q_len, shape.heads
        return (
            jax.random.normal(keys[0], (groups, *dims, shape.kv_lora), jnp.bfloat16),
            jax.random.normal(keys[1], (groups, *dims, shape.rope), jnp.bfloat16),
            paged.view(keys[3], paged.pool(keys[2], width)),
        )

    return Case(
        operation="attend_share",
        shape=shape.name,
        variant=paged.variant,
        run=partial(_run, pallas.attend_share),
        reference=partial(_run, reference.attend_share),
        example=example,
        kernels=kernels or _kernels(paged.batch * rows),
        matrix=matrix_instruction(None, 0 if paged.fp8 else rows),
        bytes_moved=slots * width * jnp.dtype(paged.kv_dtype).itemsize
        + paged.batch * rows * (width + shape.kv_lora + MASS) * 2,
        flops=2 * rows * slots * (width + shape.kv_lora),
        # One case for each kernel and format; the others differ only in batch.
        decode=groups == 8 and paged.context < LONG and (paged.q_len == 1) == paged.fp8,
    )


def _kernels(rows: int) -> tuple[str, ...]:
    """Return the kernels launched. With as many programs of 64 rows as a GPU has compute units, or
    more than half as many, contexts are not split."""
    return ("mla_share",) if rows >= 64 * 256 else ("mla_share_parts", "mla_share_merge")


def values_case(shape: LatentAttention, rows: int, groups: int | None = None) -> Case:
    groups = groups or groups_of(shape)
    matrices = shape.heads * shape.kv_lora * VALUE
    shares = groups * rows * shape.heads * (shape.kv_lora + MASS)

    def example(seed: int) -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(seed), 3)
        dims = groups, rows, 1, shape.heads
        means = jax.random.normal(keys[0], (*dims, shape.kv_lora))
        masses = jax.random.uniform(keys[1], dims, maxval=12.0)
        kernel = jax.random.normal(keys[2], (shape.heads, shape.kv_lora, VALUE), jnp.bfloat16)
        return pack(means, masses, jnp.bfloat16), kernel * shape.kv_lora**-0.5

    return Case(
        operation="share_values",
        shape=shape.name,
        variant=f"rows{rows}",
        run=values.share_values,
        reference=reference.share_values,
        example=example,
        kernels=("mla_share_values",),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=2 * (shares + matrices + rows * shape.heads * VALUE),
        flops=2 * rows * matrices,
        decode=groups == 8 and rows == 64,
    )


def _run(operation: Any, q: Any, q_rope: Any, paged: PagedKV) -> Any:
    return operation(q, q_rope, paged, SCALE)
