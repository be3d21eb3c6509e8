"""GPU kernels of `route`: one program if it can hold all tokens, else two launches."""

import jax.numpy as jnp
from jax import Array

from pallas_kernels.route import one_program, two_launches
from pallas_kernels.route.choice import Asked, Routes


def route(asked: Asked) -> Routes:
    """Implement `pallas_kernels.route.api.route` as a GPU kernel."""
    tokens, experts = asked.logits.shape
    few = one_program.fits(tokens, experts, asked.options.top_k)
    return (one_program if few else two_launches).route(asked)


def refusal(logits: Array) -> str | None:
    """Return why the kernels cannot run on these logits, or None if they can."""
    if logits.dtype != jnp.float32:
        return f"expected float32 logits, got {logits.dtype}"
    if (experts := logits.shape[1]) > two_launches.MOST_EXPERTS:
        return f"expected at most {two_launches.MOST_EXPERTS} experts, got {experts}"
    return None
