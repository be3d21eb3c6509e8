"""Choice of tokens in the head's GPU kernel, without writing logits."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.collectives import Axis
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.speculative.logit_control_rows import NO_TOKEN, TokenBiases
from pallas_kernels import logits_argmax
from pallas_kernels.dispatch import candidates
from pallas_kernels.logits_argmax import ArgmaxOptions
from pallas_kernels.quantized import Kernel


def chooses_in_kernel() -> bool:
    """Return whether the kernel chooses tokens here. On CPU, tokens are sampled from logits."""
    return candidates("logits_argmax")[0] == "pallas"


def choose_in_kernel(
    hidden: Float[Array, "batch rows hidden"],
    head: Kernel,
    positions: Int[Array, "batch rows"],
    options: SamplingRows,
    biases: TokenBiases | None = None,
    token_ids: Int[Array, " vocab"] | None = None,
    *,
    axis: Axis = None,
) -> Int[Array, "batch rows"]:
    """Choose the tokens of `sampling.sampler.sample`, but without top-k and top-p.

    Those need whole rows. A draft that they would bar is lost, never wrong, because the target does
    not pick it. The target's own rows come here only if both are off. Logits that are not all
    finite give NOT_FINITE. `token_ids` are the target ids of this device's head columns, which
    `axis` splits.
    """
    batch, rows = positions.shape

    def of_row(option: Array) -> Array:
        return jnp.repeat(option, rows, axis=0)

    early = positions < options.min_len[:, None]
    bias_ids = jnp.where(early[..., None], options.stop_ids[:, None], NO_TOKEN)
    bias = jnp.full(bias_ids.shape, -jnp.inf)
    if biases is not None:
        ids, values = (of_row(x).reshape(batch, rows, -1) for x in (biases.ids, biases.values))
        bias_ids = jnp.concatenate([bias_ids, ids], axis=2)
        bias = jnp.concatenate([bias, values], axis=2)
    chosen = ArgmaxOptions(
        temperature=of_row(options.temperature),
        seed=of_row(options.seed),
        positions=positions.reshape(-1),
        min_p=of_row(options.min_p),
        bias_ids=bias_ids.reshape(batch * rows, -1),
        bias=bias.reshape(batch * rows, -1),
    )
    flat = hidden.reshape(batch * rows, -1)
    _, tokens = logits_argmax(flat, head, chosen, token_ids=token_ids, axis_name=axis)
    return tokens.reshape(batch, rows)
