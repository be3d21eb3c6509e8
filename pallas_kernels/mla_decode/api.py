from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.dispatch import choose
from pallas_kernels.kv_scale import check_scale
from pallas_kernels.mla_decode import pallas, reference, xla
from pallas_kernels.split_kv import refusal
from pallas_kernels.visibility import check_ancestors


def mla_decode(
    q_latent: Float[Array, "batch q_len heads kv_lora"],
    q_rope: Float[Array, "q_batch q_len heads rope"],
    pool: Float[Array, "pages page_size width"],
    page_table: Int[Array, "table_batch pages_per_seq"],
    positions: Int[Array, "position_batch position_len"],
    *,
    scale: float,
    ancestors: Bool[Array, "mask_batch mask_len nodes"] | None = None,
    kv_scale: Float[Array, ""] | None = None,
    value_kernel: Float[Array, "v_heads v_lora value"] | None = None,
    implementation: str | None = None,
) -> Float[Array, "batch q_len heads _"]:
    """Attend absorbed queries to a paged pool of latents; the values are the latents themselves.

    A pool row is a token's latent followed by its rotated key. Slot s of sequence b lives in page
    `page_table[b, s // page_size]` and is visible to query (b, j) iff s <= positions[b, j] (>= 0).
    ancestors, where the queries are nodes of a tree: slot positions[b, j] + 1 + i holds node i and
    is visible too iff ancestors[b, j, i].
    Slots that no query of a sequence sees may hold anything, NaN included, and pages past the last
    that one sees may be any integer. scale multiplies the scores. Scores and softmax are float32.
    kv_scale, which a float8 pool needs: what is stored times it is what is attended to.
    value_kernel: each head's result, a mean of latents, is multiplied with its matrix at the end.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    if pool.shape[-1] != q_latent.shape[-1] + q_rope.shape[-1]:
        raise ValueError(
            f"mla_decode: a pool row has {pool.shape[-1]} values, the queries "
            f"{q_latent.shape[-1]} + {q_rope.shape[-1]}; rows are latent, then rope part"
        )
    if positions.shape != q_latent.shape[:2] or page_table.shape[0] != q_latent.shape[0]:
        raise ValueError(
            f"mla_decode: queries are {q_latent.shape[:2]} (batch, q_len), "
            f"positions {positions.shape}, page_table {page_table.shape}"
        )
    if value_kernel is not None and value_kernel.shape[:2] != q_latent.shape[2:]:
        raise ValueError(
            f"mla_decode: value_kernel {value_kernel.shape} must be (heads, kv_lora, value) with "
            f"{q_latent.shape[2:]} as the queries have"
        )
    check_ancestors("mla_decode", ancestors, positions)
    check_scale("mla_decode", pool, kv_scale)
    implementations = {
        "xla": xla.mla_decode,
        "reference": reference.mla_decode,
        "pallas": refusal(q_latent, pool) or pallas.mla_decode,
    }
    run = choose("mla_decode", implementation, implementations)
    return run(
        q_latent,
        q_rope,
        pool,
        page_table,
        positions,
        scale=scale,
        ancestors=ancestors,
        kv_scale=kv_scale,
        value_kernel=value_kernel,
    )
