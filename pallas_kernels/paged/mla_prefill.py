"""Latent attention of a prompt chunk to a paged pool: contract and form for CPUs."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.mla import check_row, mean_and_mass
from pallas_kernels.paged.mla_prefill_kernel import launch_prefill, launch_prefill_part
from pallas_kernels.paged.softmax import softmax_and_mass
from pallas_kernels.paged.split_kv import refuse


def mla_prefill(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
    implementation: str | None = None,
) -> Float[Array, "batch q_len heads value"]:
    """Attend a prompt chunk causally to a paged pool of latents that already holds its rows.

    For each head, a latent c of the pool has the key c @ key_kernel[head], followed by the row's
    rotated part, and the value c @ value_kernel[head]. Trees are not supported. On a GPU, keys and
    values of the context are computed once for all rows. From about 170 rows on, this is less work
    than absorbing them (kv_lora 512, heads of 128).
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    _check("mla_prefill", q_nope, q_rope.shape[-1], paged, key_kernel, value_kernel)
    operands = q_nope, q_rope, paged, scale, key_kernel, value_kernel
    return MLA_PREFILL(implementation, *operands)


def mla_prefill_part(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
    implementation: str | None = None,
) -> tuple[Float[Array, "batch q_len heads value"], Float[Array, "batch q_len heads"]]:
    """Run `mla_prefill` on a part of the context, for joining with other parts.

    Returns float32 values and the base-2 logarithm of each row's mass, the sum of exp(score) over
    the slots it sees. The values of a split context are the parts' values weighted by 2 **
    log-mass. A query with position -1 sees no slot and returns 0 and -inf.
    Raises ValueError as `mla_prefill` does.
    """
    _check("mla_prefill_part", q_nope, q_rope.shape[-1], paged, key_kernel, value_kernel)
    operands = q_nope, q_rope, paged, scale, key_kernel, value_kernel
    return MLA_PREFILL_PART(implementation, *operands)


def _check(operation: str, q: Array, rope: int, paged: PagedKV, *kernels: Array) -> None:
    """Raise ValueError if shapes do not fit."""
    keys, values = kernels
    if keys.shape[:2] != values.shape[:2] or len(keys) != q.shape[2]:
        raise ValueError(
            f"{operation}: key_kernel {keys.shape} and value_kernel {values.shape} must be (heads, "
            f"kv_lora, size) with the queries' {q.shape[2]} heads"
        )
    check_row(operation, paged, keys.shape[1], rope)
    if paged.ancestors is not None:
        raise ValueError(f"{operation}: expected rows of a chunk, got nodes of a tree")
    paged.check(operation, q)


def _reference(*operands: Any) -> Array:
    scores, values = _scores_and_values(*operands)
    probs = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bqhs,bshd->bqhd", probs.astype(values.dtype), values)


def _part_reference(*operands: Any) -> tuple[Array, Array]:
    scores, values = _scores_and_values(*operands)
    probs, mass = softmax_and_mass(scores)
    means = jnp.einsum(
        "bqhs,bshd->bqhd", probs.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    return means, mass


def _scores_and_values(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> tuple[Float[Array, "batch q_len heads slots"], Float[Array, "batch slots heads value"]]:
    """Return float32 scores, -inf for unseen slots, and each head's values of the slots."""
    kv_lora = key_kernel.shape[1]
    (rows,) = paged.context(q_nope.dtype)
    latent, rotated = rows[..., :kv_lora], rows[..., kv_lora:]
    keys = jnp.einsum("bsc,hcd->bshd", latent, key_kernel)
    values = jnp.einsum("bsc,hcd->bshd", latent, value_kernel)
    scores = jnp.einsum("bqhd,bshd->bqhs", q_nope, keys, preferred_element_type=jnp.float32)
    scores += jnp.einsum("bqhd,bsd->bqhs", q_rope, rotated, preferred_element_type=jnp.float32)
    visible = (jnp.arange(rows.shape[1]) <= paged.positions[..., None])[:, :, None]
    return jnp.where(visible, scores * scale, -jnp.inf), values


def _on_cpu(q_nope: Array, *others: Any) -> Array:
    """Absorb the kernels into query and output, as in a decode step."""
    mean, _ = _of_latents(q_nope, *others[:-1])
    with jax.named_scope("mla_expand_value"):
        return jnp.einsum("bqhc,hcd->bqhd", mean.astype(q_nope.dtype), others[-1])


def _part_on_cpu(q_nope: Array, *others: Any) -> tuple[Array, Array]:
    mean, log_mass = _of_latents(q_nope, *others[:-1])
    with jax.named_scope("mla_expand_value"):
        # XLA:CPU does not support this product of bfloat16 with a float32 result.
        return jnp.einsum("bqhc,hcd->bqhd", mean, others[-1].astype(jnp.float32)), log_mass


def _of_latents(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    key_kernel: Float[Array, "heads kv_lora nope"],
) -> tuple[Float[Array, "batch q_len heads kv_lora"], Float[Array, "batch q_len heads"]]:
    """Return each head's mean of latents, and its log2 mass; float32."""
    with jax.named_scope("mla_absorb_query"):
        q = jnp.einsum("bqhd,hcd->bqhc", q_nope, key_kernel)
    return mean_and_mass(q, q_rope, paged, scale)


MLA_PREFILL = Operation(
    "mla_prefill", reference=_reference, pallas=launch_prefill, refuse=refuse, xla=_on_cpu
)
MLA_PREFILL_PART = Operation(
    "mla_prefill_part",
    reference=_part_reference,
    pallas=launch_prefill_part,
    refuse=refuse,
    xla=_part_on_cpu,
)
