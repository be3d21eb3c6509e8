"""Log-probabilities of tokens, and of the best ones. On the device; no model, no cache.

Raw ones are those of the model's own logits, processed ones those of the distribution that tokens
are drawn from, after every option of the request. Either way they are the target's at that row.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.collectives import Axis, all_sum, first_column
from eagle3_jax.sampling.limits import MAX_LOGPROBS
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import process_logits
from eagle3_jax.vocabulary import best_pairs, logsumexp, value_at

_BLOCK = 128  # neighbouring ids that are searched, or skipped, together


class TokenLogprobs(NamedTuple):
    """Of one token a row: its log-probability, its rank, and the best of all.

    rank: how many tokens are at least as good, itself included, as in vLLM: of equals, the last
    place. best_ids are in falling order of best, the lowest id first of equals.
    """

    chosen: Float[Array, "*rows"]
    rank: Int[Array, "*rows"]
    best_ids: Int[Array, "*rows top"]
    best: Float[Array, "*rows top"]


class Logprobs(NamedTuple):
    """What a full program tells of the tokens it sampled, and a prefill, if asked, of the prompt's:
    row i of a chunk is about the token after it."""

    sampled: TokenLogprobs
    prompt: TokenLogprobs | None = None


def sampled_logprobs(
    logits: Float[Array, "batch rows vocab"],
    controlled: Float[Array, "batch rows vocab"],
    positions: Int[Array, "batch rows"],
    token_ids: Int[Array, "batch rows"],
    options: SamplingRows,
    processed: Bool[Array, " batch"],
    axis: Axis = None,
) -> TokenLogprobs:
    """Of the tokens sampled at `positions` from the controlled logits, raw or processed by row.

    Sampling computes the processed scores as well, from the same arguments: XLA does it once.
    """
    scores = process_logits(controlled, positions, options, axis=axis)
    return token_logprobs(jnp.where(processed[:, None, None], scores, logits), token_ids, axis)


def token_logprobs(
    scores: Float[Array, "*rows vocab"], token_ids: Int[Array, "*rows"], axis: Axis = None
) -> TokenLogprobs:
    """Of these tokens and of the MAX_LOGPROBS best, as far as there are so many.

    axis: over which the vocabulary is split (eagle3_jax.vocabulary).
    """
    shift = logsumexp(scores, axis)
    chosen = value_at(scores, token_ids, axis)[..., None]
    rank = all_sum((scores >= chosen).sum(-1, dtype=jnp.int32), axis)
    best_ids, best = _best(scores, min(MAX_LOGPROBS, scores.shape[-1]))
    best_ids += first_column(scores.shape[-1], axis)
    best, best_ids = best_pairs(best, best_ids, MAX_LOGPROBS, axis)
    return TokenLogprobs((chosen - shift)[..., 0], rank, best_ids, best - shift)


def _best(
    scores: Float[Array, "*rows vocab"], count: int
) -> tuple[Int[Array, "*rows top"], Float[Array, "*rows top"]]:
    """The `count` best ids and their scores: no more blocks than that can hold one of them.

    At 163,840 ids five times as fast as a top-k over all (XLA:CPU).
    """
    rows, vocab = scores.shape[:-1], scores.shape[-1]
    flat = jnp.pad(
        scores.reshape(-1, vocab), ((0, 0), (0, -vocab % _BLOCK)), constant_values=-jnp.inf
    )
    blocks = flat.reshape(flat.shape[0], -1, _BLOCK)
    maxima = blocks.max(-1)
    _, found = lax.top_k(maxima, min(count, maxima.shape[-1]))
    # In order of ids, so that of equal scores the lowest id comes first.
    found = jnp.sort(found, axis=-1)
    candidates = jnp.take_along_axis(blocks, found[..., None], axis=1)
    best, indices = lax.top_k(candidates.reshape(flat.shape[0], -1), count)
    block = jnp.take_along_axis(found, indices // _BLOCK, axis=-1)
    ids = block * _BLOCK + indices % _BLOCK
    return ids.reshape(*rows, count), best.reshape(*rows, count)
