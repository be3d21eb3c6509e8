from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.route import pallas, reference
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
    kernel = pallas.refusal(logits) or pallas.route
    forms = {"xla": reference.without_tiles, "reference": reference.route, "pallas": kernel}
    own = held or Held(None, logits.shape[1])
    return choose("route", implementation, **forms)(Asked(logits, bias, options, x, format, own))
