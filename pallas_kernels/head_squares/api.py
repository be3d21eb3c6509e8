from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.head_squares import pallas, reference


def head_squares(
    q: Float[Array, "*rows q_width"],
    k: Float[Array, "*rows k_width"],
    *,
    implementation: str | None = None,
) -> Float[Array, "*rows 2"]:
    """Return float32 sums of squares of each row of queries and of keys, for norms over all heads.

    Devices that hold some of the heads add up their sums, both at once. Raises ValueError on shapes
    that do not fit and on an implementation that cannot run.
    """
    if q.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"head_squares: expected q and k of the same rows: {q.shape}, {k.shape}")
    kernel = pallas.refusal(q, k) or pallas.head_squares
    run = choose("head_squares", implementation, reference=reference.head_squares, pallas=kernel)
    return run(q, k)
