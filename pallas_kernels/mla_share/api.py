"""Latent attention to a context that is split over several devices, with the same page ids on each.

Every device attends the heads of all of them to its own part of the context (`attend_share`), sends
each head's partial attention to the head's device, and joins those it receives (`share_values`).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.mla_share import pallas, reference, values, xla
from pallas_kernels.mla_share.layout import MASS
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import refusal


def attend_share(
    q_latent: Float[Array, "groups batch q_len heads kv_lora"],
    q_rope: Float[Array, "groups batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    implementation: str | None = None,
) -> Float[Array, "groups batch q_len heads share"]:
    """Attend the absorbed queries of `groups` devices to this device's part of each context.

    paged: this device's pool and page table. A position is the last of this device's slots that the
    query sees, -1 if it sees none. Trees are not supported. Scores are multiplied by `scale`.
    A row of the result, in the queries' bfloat16 or float32, is the mean of latents, 0 without
    visible slots, followed by MASS numbers. The first of these (float32) or the sum of the first
    three (bfloat16) is the float32 base-2 logarithm of the sum of exp(score), -1e30 without visible
    slots; the others are 0. If a visible slot holds NaN, mean and logarithm are NaN.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    (pool,) = paged.pools
    if pool.shape[-1] != q_latent.shape[-1] + q_rope.shape[-1]:
        raise ValueError(
            f"attend_share: a pool row has {pool.shape[-1]} values, the queries "
            f"{q_latent.shape[-1]} + {q_rope.shape[-1]}; rows are latent, then rope part"
        )
    if q_latent.dtype not in (jnp.bfloat16, jnp.float32):
        raise ValueError(
            f"attend_share: expected queries of bfloat16 or float32, got {q_latent.dtype}"
        )
    if paged.ancestors is not None:
        raise ValueError("attend_share: expected rows of a chain, got nodes of a tree")
    paged.check("attend_share", q_latent[0])
    kernel = refusal(q_latent, pool) or pallas.attend_share
    forms = {"xla": xla.attend_share, "reference": reference.attend_share, "pallas": kernel}
    run = choose("attend_share", implementation, **forms)
    return run(q_latent, q_rope, paged, scale)


def share_values(
    shares: Float[Array, "groups batch q_len heads share"],
    value_kernel: Float[Array, "heads kv_lora value"],
    *,
    implementation: str | None = None,
) -> Float[Array, "batch q_len heads value"]:
    """Join the partial attention of `groups` devices and compute each head's values.

    Rows are those of `attend_share`. Means are weighted by their masses and added in float32 in the
    order of the groups; each head's mean is multiplied by its matrix. Rows without a visible slot
    in any group are 0.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    heads, kv_lora, _ = value_kernel.shape
    if shares.shape[3:] != (heads, kv_lora + MASS):
        raise ValueError(
            f"share_values: value_kernel {value_kernel.shape} must be (heads, kv_lora, value), and "
            f"shares end with (heads, kv_lora + {MASS}); got {shares.shape}"
        )
    kernel = refusal(shares) or values.share_values
    forms = {"reference": reference.share_values, "pallas": kernel}
    return choose("share_values", implementation, **forms)(shares, value_kernel)
