"""The router's kernels: one program where it holds all tokens, two launches for more."""

import jax.numpy as jnp
from jax import Array

from pallas_kernels.route import one_program, two_launches
from pallas_kernels.route.choice import Asked, Routes


def route(asked: Asked) -> Routes:
    """See `pallas_kernels.route.api.route`."""
    tokens, experts = asked.logits.shape
    few = one_program.fits(tokens, experts, asked.options.top_k)
    return (one_program if few else two_launches).route(asked)


def refusal(logits: Array) -> str | None:
    """Why the kernels cannot run on these."""
    if logits.dtype != jnp.float32:
        return f"expected float32 logits, got {logits.dtype}"
    if (experts := logits.shape[1]) > two_launches.MOST_EXPERTS:
        return f"expected at most {two_launches.MOST_EXPERTS} experts, got {experts}"
    return None
