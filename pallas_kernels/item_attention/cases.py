"""Cases of `item_attention`: attention within images, at the shape of Kimi-K2.5's vision tower."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.case import ARCHS, Case
from pallas_kernels.item_attention import pallas, reference
from pallas_kernels.shapes import VISION_ATTENTION, VisionAttention

PACKED = ((256,), (1024, 1024, 2040, 8), (16_900, 3580))
"""Patches of images in one array, with padding last: a small image, several, the largest one."""


def cases() -> list[Case]:
    return [make_case(shape, items) for shape in VISION_ATTENTION for items in PACKED]


def make_case(shape: VisionAttention, items: Sequence[int]) -> Case:
    rows, width = sum(items), shape.heads * shape.head_dim
    return Case(
        operation="item_attention",
        shape=shape.name,
        variant=f"rows{rows}",
        run=partial(_run, pallas.item_attention),
        reference=partial(_run, reference.item_attention),
        example=partial(_example, shape, tuple(items)),
        kernels=("item_attention",),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=4 * rows * width * 2 + 4 * rows,
        flops=4 * sum(size * size for size in items) * width,
    )


def _run(operation: Any, q: Any, k: Any, v: Any, items: Any) -> Any:
    return operation(q, k, v, items, q.shape[-1] ** -0.5)


def _example(shape: VisionAttention, items: tuple[int, ...], seed: int) -> tuple[Any, ...]:
    size = sum(items), shape.heads, shape.head_dim
    q, k, v = (
        jax.random.normal(key, size, jnp.bfloat16)
        for key in jax.random.split(jax.random.key(seed), 3)
    )
    numbers = jnp.repeat(jnp.arange(len(items)), jnp.array(items), total_repeat_length=size[0])
    return q, k, v, numbers
