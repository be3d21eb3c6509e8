"""A sum and its norm, written plainly: the contract every implementation meets."""

from jaxtyping import Array, Float

from pallas_kernels.rms_norm import Norm, rms_norm


def add_norm(
    x: Float[Array, "*rows hidden"], added: Float[Array, "*rows hidden"], norm: Norm
) -> tuple[Float[Array, "*rows hidden"], Float[Array, "*rows hidden"]]:
    """See `pallas_kernels.add_norm.api.add_norm`."""
    total = x + added
    return total, rms_norm(total, norm)
