from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.router_logits import pallas, reference


def router_logits(
    x: Float[Array, "tokens hidden"],
    kernel: Float[Array, "hidden experts"],
    *,
    implementation: str | None = None,
) -> Float[Array, "tokens experts"]:
    """Compute x @ kernel in float32 for all input dtypes: float32 operands are not rounded.

    Products of bfloat16 are exact in float32. Operands of one dtype and the many rows of a prefill
    use the library's product, which is fast for them. With a float32 router, the library would
    convert bfloat16 rows in a separate launch. Raises ValueError on shapes that do not fit and, if
    there is a choice, on an implementation that cannot run.
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
