from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.router_logits import pallas, reference


def router_logits(
    x: Float[Array, "tokens hidden"],
    kernel: Float[Array, "hidden experts"],
    *,
    implementation: str | None = None,
) -> Float[Array, "tokens experts"]:
    """x @ kernel in float32, whatever their dtypes: products of bfloat16 are exact in it, float32
    is not rounded.

    What a library does well is left to it: operands of one dtype, and the many rows of a prefill.
    A router in float32 would have it convert the rows in a launch of their own. Raises ValueError
    on shapes that do not fit and, where there is something to choose, on an implementation that
    cannot run.
    """
    if x.shape[1] != kernel.shape[0]:
        raise ValueError(
            f"router_logits: expected x [tokens, hidden] and kernel [hidden, experts], got "
            f"{x.shape} and {kernel.shape}"
        )
    plain = reference.router_logits
    if x.dtype == kernel.dtype or len(x) > pallas.MOST_ROWS:
        return plain(x, kernel)
    faster = pallas.refusal(x, kernel) or pallas.router_logits
    return choose("router_logits", implementation, reference=plain, pallas=faster)(x, kernel)
