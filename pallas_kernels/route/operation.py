"""Router: the choice of each token's experts, with the tile map of the experts' kernels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.grouped_matmul.tile_map import tile_map
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.route import one_program, two_launches
from pallas_kernels.route.choice import Asked, Held, RouterOptions, Routes


def route(
    logits: Float[Array, "tokens experts"],
    bias: Float[Array, " experts"],
    options: RouterOptions,
    *,
    x: Float[Array, "tokens hidden"] | None = None,
    format: QuantFormat | None = None,
    held: Held | None = None,
    implementation: str | None = None,
) -> Routes:
    """Choose and weight experts as DeepSeek-V3's router does (arXiv 2412.19437, section 2.1.2).

    Scores are the sigmoid of float32 logits. A token takes the top_k of score + bias, the lower id
    on ties, and weights them by their scores; the bias never enters a weight. The tile map is the
    one that `grouped_mlp` computes from these ids; None if `grouped_mlp` must compute it.
    x, format: rows that the experts will multiply, and the format of their weights. The choice
    takes only a few programs, so others in its launch quantise x if the format requires it. held: a
    device's experts, if it does not have all; ids and map count from the first of them.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    if bias.shape != logits.shape[1:] or not 0 < options.top_k <= logits.shape[1]:
        raise ValueError(
            f"route: expected logits [t, experts], bias [experts] and top_k in 1..experts; got "
            f"{logits.shape}, {bias.shape}, {options.top_k}"
        )
    if x is not None and len(x) != len(logits):
        raise ValueError(f"route: expected {len(logits)} rows of x, got {len(x)}")
    own = held or Held(None, logits.shape[1])
    return ROUTE(implementation, Asked(logits, bias, options, x, format, own))


def _reference(asked: Asked) -> Routes:
    chosen, held = without_tiles(asked), asked.held.experts
    rows = row_tile(len(asked.logits), asked.options.top_k, held)
    return chosen._replace(tiles=tile_map(chosen.expert_ids, held, rows))


def without_tiles(asked: Asked) -> Routes:
    """Route without a tile map, for a `grouped_mlp` that needs none or computes it."""
    scores, options = jax.nn.sigmoid(asked.logits), asked.options
    _, expert_ids = jax.lax.top_k(scores + asked.bias, options.top_k)
    weights = jnp.take_along_axis(scores, expert_ids, axis=-1)
    if options.normalise:
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + 1e-20)
    return Routes(asked.held.own(expert_ids), weights * options.scaling)


def _launch(asked: Asked) -> Routes:
    """Launch one program if it can hold all tokens, else two kernels."""
    tokens, experts = asked.logits.shape
    few = one_program.fits(tokens, experts, asked.options.top_k)
    return (one_program if few else two_launches).route(asked)


def _refuse(asked: Asked) -> str | None:
    if asked.logits.dtype != jnp.float32:
        return f"expected float32 logits, got {asked.logits.dtype}"
    if (experts := asked.logits.shape[1]) > two_launches.MOST_EXPERTS:
        return f"expected at most {two_launches.MOST_EXPERTS} experts, got {experts}"
    return None


ROUTE = Operation("route", reference=_reference, pallas=_launch, refuse=_refuse, xla=without_tiles)
