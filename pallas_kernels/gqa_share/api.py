"""Attention to the context of one KV head that is split over several devices.

Every device attends the query heads of all of them to its own part of the context (`gqa_share`),
sends each head's partial attention to the head's device, and joins those it receives
(`join_shares`): a few sums, which XLA fuses into one loop.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.gqa_share import pallas, reference, xla
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import refusal


def gqa_share(
    q: Float[Array, "groups batch q_len heads head_dim"],
    paged: PagedKV,
    scale: float,
    *,
    implementation: str | None = None,
) -> Float[Array, "groups batch q_len heads share"]:
    """Attend the queries of `groups` devices to this device's part of each context.

    paged: pools of keys and values with rows [1, head_dim], and the page table. A position is the
    last of this device's slots that the query sees, -1 if it sees none. Trees are not supported.
    Scores are multiplied by `scale`.
    Returns rows as those of `pallas_kernels.attend_share`, with a mean of values. Raises ValueError
    on shapes that do not fit and on an implementation that cannot run.
    """
    k_pool, v_pool = paged.pools
    if k_pool.shape != v_pool.shape or k_pool.shape[2:] != (1, q.shape[-1]):
        raise ValueError(
            f"gqa_share: k_pool {k_pool.shape} and v_pool {v_pool.shape} must be equal, with rows "
            f"of one head of {q.shape[-1]} as the queries have"
        )
    if q.dtype not in (jnp.bfloat16, jnp.float32):
        raise ValueError(f"gqa_share: expected queries of bfloat16 or float32, got {q.dtype}")
    if paged.ancestors is not None:
        raise ValueError("gqa_share: expected rows of a chain, got nodes of a tree")
    paged.check("gqa_share", q[0])
    kernel = refusal(q, k_pool, v_pool) or pallas.gqa_share
    forms = {"xla": xla.gqa_share, "reference": reference.gqa_share, "pallas": kernel}
    return choose("gqa_share", implementation, **forms)(q, paged, scale)
