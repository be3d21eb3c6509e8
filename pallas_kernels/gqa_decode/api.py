from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.dispatch import choose
from pallas_kernels.gqa_decode import pallas, reference, xla
from pallas_kernels.kv_scale import check_scale
from pallas_kernels.quantized import QuantFormat, Rows
from pallas_kernels.split_kv import refusal
from pallas_kernels.visibility import check_ancestors


def gqa_decode(
    q: Float[Array, "batch q_len heads head_dim"],
    k_pool: Float[Array, "pages page_size kv_heads k_dim"],
    v_pool: Float[Array, "v_pages v_page_size v_heads v_dim"],
    page_table: Int[Array, "table_batch pages_per_seq"],
    positions: Int[Array, "position_batch position_len"],
    *,
    scale: float,
    ancestors: Bool[Array, "mask_batch mask_len nodes"] | None = None,
    k_scale: Float[Array, ""] | None = None,
    v_scale: Float[Array, ""] | None = None,
    then: QuantFormat | None = None,
    implementation: str | None = None,
) -> Rows:
    """Attend queries to paged keys and values; consecutive query heads share a key-value head.

    Slot s of sequence b lives in page `page_table[b, s // page_size]` and is visible to query
    (b, j) iff s <= positions[b, j] (>= 0). ancestors, where the queries are nodes of a tree: slot
    positions[b, j] + 1 + i holds node i and is visible too iff ancestors[b, j, i]. Slots that no
    query of a sequence sees may hold anything, NaN included, and pages past the last that one sees
    may be any integer. scale multiplies the scores. Scores and softmax are float32.
    k_scale and v_scale, which float8 pools need: what is stored times it is what is attended to.
    One kv_head is multi-query, kv_heads == heads is multi-head.
    Returns [batch, q_len, heads * head_dim]. then: the format of what multiplies that; where it
    takes float8 in runs as long as a head, the kernel makes them.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    if k_pool.shape != v_pool.shape or k_pool.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"gqa_decode: k_pool {k_pool.shape} and v_pool {v_pool.shape} must be equal, "
            f"with head_dim {q.shape[-1]} as the queries have"
        )
    if q.shape[2] % k_pool.shape[2]:
        raise ValueError(
            f"gqa_decode: {q.shape[2]} query heads do not divide over {k_pool.shape[2]} kv heads"
        )
    if positions.shape != q.shape[:2] or page_table.shape[0] != q.shape[0]:
        raise ValueError(
            f"gqa_decode: queries are {q.shape[:2]} (batch, q_len), "
            f"positions {positions.shape}, page_table {page_table.shape}"
        )
    check_ancestors("gqa_decode", ancestors, positions)
    check_scale("gqa_decode", k_pool, k_scale)
    check_scale("gqa_decode", v_pool, v_scale)
    implementations = {
        "xla": xla.gqa_decode,
        "reference": reference.gqa_decode,
        "pallas": refusal(q, k_pool, v_pool) or pallas.gqa_decode,
    }
    run = choose("gqa_decode", implementation, implementations)
    return run(
        q,
        k_pool,
        v_pool,
        page_table,
        positions,
        scale=scale,
        ancestors=ancestors,
        k_scale=k_scale,
        v_scale=v_scale,
        then=then,
    )
