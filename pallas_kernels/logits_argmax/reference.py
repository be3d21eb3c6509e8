"""Reference implementation of `logits_argmax`, which stores the logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.fp8_matmul import matmul
from pallas_kernels.logits_argmax.options import ArgmaxOptions, AxisName, best_of
from pallas_kernels.noise import gumbel
from pallas_kernels.quantized import Kernel


def logits_argmax(
    x: Float[Array, "rows hidden"],
    head: Kernel,
    options: ArgmaxOptions,
    token_ids: Int[Array, " vocab"],
    axis_name: AxisName,
) -> tuple[Float[Array, " rows"], Int[Array, " rows"]]:
    """Reference implementation of `pallas_kernels.logits_argmax.api.logits_argmax`."""
    logits = matmul(x, head).astype(jnp.float32)
    finite = jnp.isfinite(logits).all(1, keepdims=True)
    if options.bias_ids is not None and options.bias is not None:
        meant = options.bias_ids[:, :, None] == token_ids
        logits += jnp.where(meant, options.bias[:, :, None], 0).sum(1)
    temperature = jnp.where(options.temperature > 0, options.temperature, 1.0)[:, None]
    low, high = options.seed[:, 0], options.seed[:, 1]
    noise = gumbel(low, high, options.positions, token_ids)
    scores = logits / temperature
    scores = jnp.where(options.temperature[:, None] > 0, scores + noise, scores)
    if options.min_p is not None:
        peak = logits.max(1, keepdims=True)
        peak = peak if axis_name is None else jax.lax.pmax(peak, axis_name)
        kept = (logits - peak) / temperature >= jnp.log(options.min_p)[:, None]
        scores = jnp.where(kept, scores, -jnp.inf)
    ids = jnp.broadcast_to(token_ids, scores.shape)
    return best_of(jnp.where(finite, scores, jnp.nan), ids)
