from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.mla_decode import pallas, reference, xla
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import refusal


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
    (pool,) = paged.pools
    if pool.shape[-1] != q_latent.shape[-1] + q_rope.shape[-1]:
        raise ValueError(
            f"mla_decode: a pool row has {pool.shape[-1]} values, the queries "
            f"{q_latent.shape[-1]} + {q_rope.shape[-1]}; rows are latent, then rope part"
        )
    if value_kernel is not None and value_kernel.shape[:2] != q_latent.shape[2:]:
        raise ValueError(
            f"mla_decode: value_kernel {value_kernel.shape} must be (heads, kv_lora, value) with "
            f"{q_latent.shape[2:]} as the queries have"
        )
    paged.check("mla_decode", q_latent)
    kernel = refusal(q_latent, pool) or pallas.mla_decode
    forms = {"xla": xla.mla_decode, "reference": reference.mla_decode, "pallas": kernel}
    run = choose("mla_decode", implementation, **forms)
    return run(q_latent, q_rope, paged, scale, value_kernel=value_kernel)
