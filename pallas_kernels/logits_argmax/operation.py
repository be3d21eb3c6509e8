"""Projection onto a vocabulary and choice of a token, without storing the logits."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import Operation
from pallas_kernels.fp8_matmul import matmul
from pallas_kernels.fp8_matmul.operands import refusal
from pallas_kernels.logits_argmax.options import ArgmaxOptions, AxisName, best_of
from pallas_kernels.logits_argmax.pallas import launch_argmax
from pallas_kernels.noise import gumbel
from pallas_kernels.quantized import Kernel


def logits_argmax(
    x: Float[Array, "rows hidden"],
    head: Kernel,
    options: ArgmaxOptions,
    *,
    token_ids: Int[Array, " vocab"] | None = None,
    axis_name: AxisName = None,
    implementation: str | None = None,
) -> tuple[Float[Array, " rows"], Int[Array, " rows"]]:
    """Return the best score of each row and its token id; the lower id of equal scores.

    A score is logit / temperature + Gumbel(seed, position, id), without noise at temperature 0. A
    logit is float32 of x @ head (rounded to x's dtype) plus bias. token_ids holds the id of each
    column, ascending; without it, columns count up. Under `axis_name` of a shard_map, head is one
    shard of the vocabulary, column ids continue from the previous shard, and all shards return one
    common result. A row whose logits hold NaN or infinity returns (NaN, NOT_FINITE); a row whose
    ids are all barred returns (-inf, NO_CANDIDATE).
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    hidden, vocab = head.shape
    ids = token_ids
    if ids is None:
        first = 0 if axis_name is None else jax.lax.axis_index(axis_name) * vocab
        ids = first + jnp.arange(vocab, dtype=jnp.int32)
    if x.shape[1] != hidden or ids.shape != (vocab,) or options.seed.shape != (x.shape[0], 2):
        raise ValueError(
            "logits_argmax: expected x [rows, hidden], head [hidden, vocab], seeds [rows, 2] and "
            f"token_ids [vocab]; got {x.shape}, {tuple(head.shape)}, {options.seed.shape}, "
            f"{ids.shape}"
        )
    found = LOGITS_ARGMAX(implementation, x, head, options, ids, axis_name)
    if axis_name is None:
        return found
    bits = jax.lax.bitcast_convert_type(found[0], jnp.int32)
    bits, chosen = jax.lax.all_gather(jnp.stack([bits, found[1]]), axis_name, axis=2)
    return best_of(jax.lax.bitcast_convert_type(bits, jnp.float32), chosen)


def _reference(
    x: Array, head: Kernel, options: ArgmaxOptions, token_ids: Array, axis_name: AxisName
) -> tuple[Array, Array]:
    """Store the logits, and choose from them."""
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


LOGITS_ARGMAX = Operation(
    "logits_argmax",
    reference=_reference,
    pallas=launch_argmax,
    refuse=lambda x, head, *_: refusal(x, head),
)
