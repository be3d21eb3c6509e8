from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import choose
from pallas_kernels.kv_scale import check_scale
from pallas_kernels.mla_prefill import pallas, reference, xla
from pallas_kernels.split_kv import refusal


def mla_prefill(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "q_batch q_len heads rope"],
    key_kernel: Float[Array, "k_heads kv_lora nope"],
    value_kernel: Float[Array, "v_heads v_lora value"],
    pool: Float[Array, "pages page_size width"],
    page_table: Int[Array, "table_batch pages_per_seq"],
    positions: Int[Array, "position_batch position_len"],
    *,
    scale: float,
    kv_scale: Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> Float[Array, "batch q_len heads value"]:
    """Attend a chunk of a prompt causally to a paged pool of latents, its own rows among them.

    A latent c of the pool stands for each head's key c @ key_kernel[head], followed by the row's
    rotated part, and for its value c @ value_kernel[head]. Pages, positions and scales are those of
    `mla_decode`. On a GPU keys and values of the context are computed once for all rows, which from
    about 170 rows on is less work than absorbing them (kv_lora 512, heads of 128).
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
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
    if positions.shape != q_nope.shape[:2] or page_table.shape[0] != q_nope.shape[0]:
        raise ValueError(
            f"mla_prefill: queries are {q_nope.shape[:2]} (batch, q_len), "
            f"positions {positions.shape}, page_table {page_table.shape}"
        )
    check_scale("mla_prefill", pool, kv_scale)
    implementations = {
        "xla": xla.mla_prefill,
        "reference": reference.mla_prefill,
        "pallas": refusal(q_nope, pool) or pallas.mla_prefill,
    }
    run = choose("mla_prefill", implementation, implementations)
    arrays = q_nope, q_rope, key_kernel, value_kernel, pool, page_table, positions
    return run(*arrays, scale=scale, kv_scale=kv_scale)
