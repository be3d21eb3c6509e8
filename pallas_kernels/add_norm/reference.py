"""Reference implementation of `add_norm` in plain JAX."""

from jaxtyping import Array, Float

from pallas_kernels.rms_norm import Norm, rms_norm


def add_norm(
    x: Float[Array, "*rows hidden"], added: Float[Array, "*rows hidden"], norm: Norm
) -> tuple[Float[Array, "*rows hidden"], Float[Array, "*rows hidden"]]:
    """Reference implementation of `pallas_kernels.add_norm.api.add_norm`."""
    total = x + added
    return total, rms_norm(total, norm)
