"""The router's kernels: one program where it holds all tokens, two launches for more."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.quantized import QuantFormat
from pallas_kernels.route import one_program, two_launches
from pallas_kernels.route.choice import Held, RouterOptions, Routes


def route(
    logits: Float[Array, "tokens experts"],
    bias: Float[Array, " experts"],
    options: RouterOptions,
    x: Float[Array, "tokens hidden"] | None = None,
    format: QuantFormat | None = None,
    held: Held | None = None,
) -> Routes:
    """See `pallas_kernels.route.api.route`."""
    tokens, experts = logits.shape
    launches = one_program if one_program.fits(tokens, experts, options.top_k) else two_launches
    return launches.route(logits, bias, options, x, format, held or Held(None, experts))


def refusal(logits: Array) -> str | None:
    """Why the kernels cannot run on these."""
    if logits.dtype != jnp.float32:
        return f"expected float32 logits, got {logits.dtype}"
    if (experts := logits.shape[1]) > two_launches.MOST_EXPERTS:
        return f"expected at most {two_launches.MOST_EXPERTS} experts, got {experts}"
    return None
