"""A draft's token straight from its hidden state, where a GPU can choose without written logits."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.sampling_rows import SamplingRows
from pallas_kernels import logits_argmax
from pallas_kernels.dispatch import candidates
from pallas_kernels.logits_argmax import ArgmaxOptions
from pallas_kernels.quantized import Kernel


def chooses_in_kernel() -> bool:
    """Whether drafts are chosen this way here. On CPU they are sampled as the target's tokens."""
    return candidates()[0] == "pallas"


def choose_in_kernel(
    hidden: Float[Array, "batch hidden"],
    head: Kernel,
    positions: Int[Array, " batch"],
    options: SamplingRows,
    token_ids: Int[Array, " vocab"] | None,
) -> Int[Array, " batch"]:
    """The token of `eagle3_jax.sampling.sample` without its top-k and top-p.

    These need the whole row. A draft that they would bar is a lost draft and never a wrong token:
    the target does not pick it.
    """
    early = positions < options.min_len
    rows = ArgmaxOptions(
        temperature=options.temperature,
        seed=options.seed,
        positions=positions,
        min_p=options.min_p,
        bias_ids=options.stop_ids,
        bias=jnp.where(early[:, None], -jnp.inf, jnp.zeros(options.stop_ids.shape)),
    )
    return logits_argmax(hidden, head, rows, token_ids=token_ids)[1]
