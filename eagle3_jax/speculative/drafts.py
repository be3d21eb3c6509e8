"""What a draft proposes, and how it draws for rejection sampling."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.noise import Stream
from eagle3_jax.sampling import draw, probabilities, process_logits
from eagle3_jax.sampling_rows import SamplingRows


class Drafts(NamedTuple):
    """Drafts as target ids; for rejection sampling also q, the law over target ids that each was
    drawn from: 0 outside the draft's vocabulary, and everywhere where none could be drawn."""

    ids: Int[Array, "batch k"]
    law: Float[Array, "batch k vocab"] | None = None


def draw_with_law(
    logits: Float[Array, "batch rows draft_vocab"],
    positions: Int[Array, "batch rows"],
    options: SamplingRows,
    target_ids: Int[Array, " draft_vocab"] | None,
    vocab_size: int,
) -> tuple[Int[Array, "batch rows"], Float[Array, "batch rows vocab"]]:
    """Draws as `sample` does, but with noise of the draft's own; returns the law it drew from."""
    scores = process_logits(logits, positions, options, target_ids)
    seed = Stream.DRAFT.seed(options.seed)[:, None]
    tokens = draw(logits, scores, positions, seed, options, target_ids)
    law = probabilities(scores, options.temperature)
    if target_ids is not None:
        law = jnp.zeros((*law.shape[:2], vocab_size)).at[..., target_ids].set(law)
    return tokens, law
