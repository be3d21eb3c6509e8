from jaxtyping import Array, Float

from pallas_kernels.absorb_query import pallas, reference
from pallas_kernels.dispatch import choose


def absorb_query(
    q: Float[Array, "batch q_len heads qk"],
    key_kernel: Float[Array, "heads kv_lora nope"],
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
    *,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch q_len heads kv_lora"], Float[Array, "batch q_len heads rope"]]:
    """Absorb W_UK into the queries of latent attention: multiply one part, rotate the rest.

    A row of q holds nope values, which are multiplied by the head's W_UK, then 2 * half values that
    are rotated in adjacent pairs by cos and sin (float32). Results have q's dtype; products and
    rotation are computed in float32.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    heads, _, nope = key_kernel.shape
    if q.shape[2:] != (heads, nope + 2 * cos.shape[-1]) or cos.shape[:2] != q.shape[:2]:
        raise ValueError(
            "absorb_query: expected q [b, q, heads, nope + rope], key_kernel [heads, kv_lora, "
            f"nope], cos and sin [b, q, rope / 2]; got {q.shape}, {key_kernel.shape}, {cos.shape}"
        )
    kernel = pallas.refusal(q, key_kernel) or pallas.absorb_query
    run = choose("absorb_query", implementation, reference=reference.absorb_query, pallas=kernel)
    return run(q, key_kernel, cos, sin)
