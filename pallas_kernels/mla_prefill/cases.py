"""Cases of `mla_prefill`: latent attention of a prompt chunk at the published shapes."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.case import ARCHS, Case
from pallas_kernels.mla_prefill import pallas, reference
from pallas_kernels.paged.case import PagedCase
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.shapes import LATENT_ATTENTION, LatentAttention

NOPE = VALUE = 128
CHUNKS = [
    PagedCase(512, 1024, batch=1),
    PagedCase(1024, 8192, batch=1),
    PagedCase(1024, 8192, batch=1, fp8=True),
]


def cases() -> list[Case]:
    """Return cases of a short and an eight times longer context, and of a context part."""
    whole = [make_case(shape, paged) for shape in LATENT_ATTENTION for paged in CHUNKS]
    return whole + [part_case(LATENT_ATTENTION[-1], paged) for paged in CHUNKS[:2]]


def part_case(shape: LatentAttention, paged: PagedCase) -> Case:
    """Build the case of a context part, with float32 values and masses."""
    whole = make_case(shape, paged)
    return replace(
        whole,
        operation="mla_prefill_part",
        run=partial(_run, pallas.mla_prefill_part),
        reference=partial(_run, reference.mla_prefill_part),
        kernels=("mla_prefill_expand", "mla_prefill_part"),
        bytes_moved=whole.bytes_moved + paged.batch * paged.q_len * shape.heads * (2 * VALUE + 4),
    )


def make_case(shape: LatentAttention, paged: PagedCase) -> Case:
    width, slots = shape.kv_lora + shape.rope, paged.batch * paged.context
    rows = paged.batch * paged.q_len * shape.heads
    seen = paged.context - paged.q_len // 2
    return Case(
        operation="mla_prefill",
        shape=shape.name,
        variant=paged.variant,
        run=partial(_run, pallas.mla_prefill),
        reference=partial(_run, reference.mla_prefill),
        example=partial(_example, shape, paged),
        kernels=("mla_prefill_expand", "mla_prefill"),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=slots * width * jnp.dtype(paged.kv_dtype).itemsize
        + rows * (NOPE + shape.rope + VALUE) * 2
        + shape.heads * shape.kv_lora * (NOPE + VALUE) * 2,
        flops=2 * rows * seen * (NOPE + shape.rope + VALUE)
        + 2 * slots * shape.heads * shape.kv_lora * (NOPE + VALUE),
    )


def _run(operation: Any, q: Any, q_rope: Any, keys: Any, values: Any, paged: PagedKV) -> Any:
    return operation(q, q_rope, paged, 192**-0.5, key_kernel=keys, value_kernel=values)


def _example(shape: LatentAttention, paged: PagedCase, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 6)

    def kernel(key: Any, size: int) -> Any:
        weights = jax.random.normal(key, (shape.heads, shape.kv_lora, size), jnp.bfloat16)
        return weights * shape.kv_lora**-0.5

    return (
        paged.queries(keys[0], shape.heads, NOPE),
        paged.queries(keys[1], shape.heads, shape.rope),
        kernel(keys[2], NOPE),
        kernel(keys[3], VALUE),
        paged.view(keys[5], paged.pool(keys[4], shape.kv_lora + shape.rope)),
    )
