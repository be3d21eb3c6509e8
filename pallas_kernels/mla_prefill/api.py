from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.mla_prefill import pallas, reference, xla
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import refusal


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
    """Attend a chunk of a prompt causally to a paged pool of latents, its own rows among them.

    A latent c of the pool stands for each head's key c @ key_kernel[head], followed by the row's
    rotated part, and for its value c @ value_kernel[head]. There are no trees here. On a GPU keys
    and values of the context are computed once for all rows, which from about 170 rows on is less
    work than absorbing them (kv_lora 512, heads of 128).
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    (pool,) = paged.pools
    kernels = key_kernel.shape[:2], value_kernel.shape[:2]
    if kernels[0] != kernels[1] or kernels[0][0] != q_nope.shape[2]:
        raise ValueError(
            f"mla_prefill: key_kernel {key_kernel.shape} and value_kernel {value_kernel.shape} "
            f"must be (heads, kv_lora, size) with the queries' {q_nope.shape[2]} heads"
        )
    if pool.shape[-1] != key_kernel.shape[1] + q_rope.shape[-1]:
        raise ValueError(
            f"mla_prefill: a pool row has {pool.shape[-1]} values, expected "
            f"{key_kernel.shape[1]} + {q_rope.shape[-1]}; rows are latent, then rope part"
        )
    if paged.ancestors is not None:
        raise ValueError("mla_prefill: expected rows of a chunk, got nodes of a tree")
    paged.check("mla_prefill", q_nope)
    kernel = refusal(q_nope, pool) or pallas.mla_prefill
    forms = {"xla": xla.mla_prefill, "reference": reference.mla_prefill, "pallas": kernel}
    run = choose("mla_prefill", implementation, **forms)
    return run(q_nope, q_rope, paged, scale, key_kernel=key_kernel, value_kernel=value_kernel)
