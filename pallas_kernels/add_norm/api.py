from jaxtyping import Array, Float

from pallas_kernels.add_norm import pallas, reference
from pallas_kernels.dispatch import choose
from pallas_kernels.rms_norm import Norm


def add_norm(
    x: Float[Array, "*rows hidden"],
    added: Float[Array, "*rows hidden"],
    norm: Norm,
    *,
    implementation: str | None = None,
) -> tuple[Float[Array, "*rows hidden"], Float[Array, "*rows hidden"]]:
    """Return x + added and its RMS norm: the residual stream and the input of the next block.

    `added` and both results have x's dtype. The norm is `rms_norm` of the rounded sum.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    if added.shape != x.shape or norm.weight.shape != x.shape[-1:]:
        raise ValueError(
            f"add_norm: expected x and added of one shape [.., hidden] and a weight [hidden], got "
            f"{x.shape}, {added.shape} and {norm.weight.shape}"
        )
    kernel = pallas.refusal(x, added) or pallas.add_norm
    run = choose("add_norm", implementation, reference=reference.add_norm, pallas=kernel)
    return run(x, added, norm)
