"""Cases of `gqa_share`: MiniMax's KV heads, with six query heads each, split over two devices."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.case import ARCHS, Case
from pallas_kernels.gqa_share import pallas, reference
from pallas_kernels.mla_share.layout import MASS
from pallas_kernels.paged.case import LONG, PagedCase
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.shapes import GroupedAttention

AT_TP16, GROUPS = GroupedAttention("minimax.attention@tp16", 3, 1), 2
PARTS = [
    *(PagedCase(q_len, LONG // GROUPS, batch=batch) for q_len in (1, 4) for batch in (16, 64)),
    PagedCase(4, LONG // GROUPS, fp8=True),
]


def cases() -> list[Case]:
    return [make_case(AT_TP16, paged) for paged in PARTS]


def make_case(shape: GroupedAttention, paged: PagedCase, groups: int = GROUPS) -> Case:
    rows, slots = groups * paged.batch * paged.q_len * shape.heads, paged.batch * paged.context
    kept = 2 * shape.head_dim * jnp.dtype(paged.kv_dtype).itemsize
    return Case(
        operation="gqa_share",
        shape=shape.name,
        variant=paged.variant,
        run=partial(_run, pallas.gqa_share),
        reference=partial(_run, reference.gqa_share),
        example=partial(_example, shape, paged, groups),
        kernels=("gqa_share", "gqa_share_merge"),
        matrix=dict.fromkeys(ARCHS, "bf16"),
        bytes_moved=slots * kept + rows * (2 * shape.head_dim + MASS) * 2,
        flops=4 * rows * paged.context * shape.head_dim,
        decode=paged.q_len == 4 and paged.batch == 16,
    )


def _run(operation: Any, q: Any, paged: PagedKV) -> Any:
    return operation(q, paged, 128**-0.5)


def _example(shape: GroupedAttention, paged: PagedCase, groups: int, seed: int) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 4)
    pools = (paged.pool(key, 1, shape.head_dim) for key in keys[1:3])
    dims = groups, paged.batch, paged.q_len, shape.heads, shape.head_dim
    return jax.random.normal(keys[0], dims, jnp.bfloat16), paged.view(keys[3], *pools)
