"""Proposed drafts, and drawing of drafts for rejection sampling."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.collectives import Axis, all_columns, num_devices
from eagle3_jax.sampling.noise import Stream
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import draw, probabilities, process_logits
from eagle3_jax.vocabulary import own_columns


class Drafts(NamedTuple):
    """Drafts as target ids, with the probabilities q that rejection sampling needs.

    q is over target ids: 0 outside the draft's vocabulary and in rows without candidates. It is
    split like the target's vocabulary.
    """

    ids: Int[Array, "batch k"]
    probs: Float[Array, "batch k vocab"] | None = None


def draw_with_probs(
    logits: Float[Array, "batch rows draft_vocab"],
    positions: Int[Array, "batch rows"],
    options: SamplingRows,
    target_ids: Int[Array, " draft_vocab"] | None,
    vocab_size: int,
    axis: Axis = None,
    target_axis: Axis = None,
) -> tuple[Int[Array, "batch rows"], Float[Array, "batch rows vocab"]]:
    """Draw like `sample`, but with the draft's own noise, and return the probabilities q too.

    `axis` splits the draft's vocabulary, `target_axis` the target's.
    """
    scores = process_logits(logits, positions, options, target_ids, axis)
    seed = Stream.DRAFT.seed(options.seed)[:, None]
    tokens = draw(logits, scores, positions, seed, options, target_ids, axis)
    probs = probabilities(scores, options.temperature, axis)
    if target_ids is None and axis == target_axis:
        return tokens, probs
    # The columns of a reduced vocabulary are not where the target has the same ids.
    probs = all_columns(probs, axis)
    if target_ids is not None:
        ids = all_columns(target_ids, axis)
        probs = jnp.zeros((*probs.shape[:2], vocab_size)).at[..., ids].set(probs)
    return tokens, own_columns(probs, vocab_size // num_devices(target_axis), axis=target_axis)
