"""Latent attention of decode steps to a paged pool: contract and form for CPUs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.paged.kv import PagedKV, visible_slots
from pallas_kernels.paged.mla_kernel import launch_mla
from pallas_kernels.paged.softmax import attend
from pallas_kernels.paged.split_kv import refuse


def mla_decode(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    value_kernel: Float[Array, "heads kv_lora value"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "batch q_len heads _"]:
    """Attend absorbed queries to a paged pool of latents; the values are the latents themselves.

    A row of the only pool is a token's latent followed by its rotated key. Scores are multiplied by
    `scale`; scores and softmax are float32. value_kernel: each head's result, a mean of latents, is
    multiplied by its matrix at the end.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    check_row("mla_decode", paged, q_latent.shape[-1], q_rope.shape[-1])
    if value_kernel is not None and value_kernel.shape[:2] != q_latent.shape[2:]:
        raise ValueError(
            f"mla_decode: value_kernel {value_kernel.shape} must be (heads, kv_lora, value) with "
            f"{q_latent.shape[2:]} as the queries have"
        )
    paged.check("mla_decode", q_latent)
    return MLA_DECODE(implementation, q_latent, q_rope, paged, scale, value_kernel=value_kernel)


def check_row(operation: str, paged: PagedKV, kv_lora: int, rope: int) -> None:
    """Raise ValueError if the pool's rows are not a latent and a rotated key of these sizes."""
    (pool,) = paged.pools
    if pool.shape[-1] != kv_lora + rope:
        raise ValueError(
            f"{operation}: a pool row has {pool.shape[-1]} values, expected {kv_lora} + {rope}; "
            "rows are latent, then rope part"
        )


def _reference(
    q_latent: Array,
    q_rope: Array,
    paged: PagedKV,
    scale: float,
    *,
    value_kernel: Array | None = None,
) -> Array:
    scores, rows = scores_and_rows(q_latent, q_rope, paged, scale)
    latent = rows[..., : q_latent.shape[-1]]
    probs = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("bqhs,bsl->bqhl", probs.astype(latent.dtype), latent)
    return out if value_kernel is None else jnp.einsum("bqhc,hcd->bqhd", out, value_kernel)


def _on_cpu(
    q_latent: Array,
    q_rope: Array,
    paged: PagedKV,
    scale: float,
    *,
    value_kernel: Array | None = None,
) -> Array:
    mean, _ = mean_and_mass(q_latent, q_rope, paged, scale)
    out = mean.astype(q_latent.dtype)
    return out if value_kernel is None else jnp.einsum("bqhc,hcd->bqhd", out, value_kernel)


def scores_and_rows(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
) -> tuple[Float[Array, "batch q_len heads slots"], Float[Array, "batch slots width"]]:
    """Return float32 scores (-inf for unseen slots) and the slots' rows in the queries' dtype (0
    for slots that no query of the sequence sees)."""
    (rows,) = paged.context(q_latent.dtype)
    query = jnp.concatenate([q_latent, q_rope], axis=-1)
    scores = jnp.einsum("bqhw,bsw->bqhs", query, rows, preferred_element_type=jnp.float32) * scale
    slots = jnp.arange(rows.shape[1])
    visible = visible_slots(slots, paged.positions, paged.ancestors)[:, :, None]
    return jnp.where(visible, scores, -jnp.inf), rows


def mean_and_mass(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
) -> tuple[Float[Array, "batch q_len heads kv_lora"], Float[Array, "batch q_len heads"]]:
    """Return float32 means and log2 masses. One copy of a chunk serves as keys and as values."""
    batch, _, heads, kv_lora = q_latent.shape
    width = paged.pools[0].shape[-1]
    query = jnp.concatenate([q_latent, q_rope], axis=-1).reshape(batch, -1, width) * scale

    def per_row(of_queries: Array) -> Array:
        return jnp.repeat(of_queries, heads, axis=1)

    def read(pages: Array, slots: Array) -> tuple[Array, Array]:
        (rows,) = paged.rows_of(pages, slots, query.dtype)
        return rows, rows

    # Values keep the rope part, because cutting it off would be a second copy.
    mean, log_mass = attend(query, paged, per_row, read, width)
    shape = q_latent.shape
    return mean[..., :kv_lora].reshape(shape), log_mass.reshape(shape[:-1])


MLA_DECODE = Operation(
    "mla_decode", reference=_reference, pallas=launch_mla, refuse=refuse, xla=_on_cpu
)
