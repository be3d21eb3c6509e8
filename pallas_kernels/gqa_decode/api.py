from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.gqa_decode import pallas, reference, xla
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import refusal
from pallas_kernels.quantized import QuantFormat, Rows


def gqa_decode(
    q: Float[Array, "batch q_len heads head_dim"],
    paged: PagedKV,
    scale: float,
    *,
    then: QuantFormat | None = None,
    implementation: str | None = None,
) -> Rows:
    """Attend queries to paged keys and values; consecutive query heads share a key-value head.

    `paged` has a pool of keys and one of values with rows [kv_heads, head_dim]. One kv_head is
    multi-query, kv_heads == heads is multi-head attention. Scores are multiplied by `scale`; scores
    and softmax are float32.
    then: the format of the kernel that multiplies the result. If that takes float8 in runs as long
    as a head, this kernel quantises the result.
    Returns [batch, q_len, heads * head_dim]. Raises ValueError on shapes that do not fit and on an
    implementation that cannot run.
    """
    k_pool, v_pool = paged.pools
    if k_pool.shape != v_pool.shape or k_pool.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"gqa_decode: k_pool {k_pool.shape} and v_pool {v_pool.shape} must be equal, "
            f"with head_dim {q.shape[-1]} as the queries have"
        )
    if q.shape[2] % k_pool.shape[2]:
        raise ValueError(
            f"gqa_decode: {q.shape[2]} query heads do not divide over {k_pool.shape[2]} kv heads"
        )
    paged.check("gqa_decode", q)
    kernel = refusal(q, k_pool, v_pool) or pallas.gqa_decode
    forms = {"xla": xla.gqa_decode, "reference": reference.gqa_decode, "pallas": kernel}
    run = choose("gqa_decode", implementation, **forms)
    return run(q, paged, scale, then=then)
