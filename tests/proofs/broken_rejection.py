"""Ways to get rejection sampling wrong, each of which a proof has to notice."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from eagle3_jax.collectives import Axis
from eagle3_jax.sampling.noise import Stream
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import probabilities, process_logits
from eagle3_jax.speculative import rejection
from eagle3_jax.speculative.propose import Drafts, draw_with_probs
from eagle3_jax.speculative.rejection import verify_by_rejection
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.verify import VerifyResult, num_valid_drafts


def one_more(logits: jax.Array, drafts: Drafts, rows: SlotRows, **how: Any) -> VerifyResult:
    """Accepts one draft past those that u < p / q accepts."""
    result = verify_by_rejection(logits, drafts, rows, **how)
    more = jnp.minimum(result.num_accepted + 1, num_valid_drafts(rows))
    return result._replace(num_accepted=more)


def replaces_from_p(logits: jax.Array, drafts: Drafts, rows: SlotRows, **how: Any) -> VerifyResult:
    """Draws the token in a rejected draft's place from p, not from what is left of it."""
    result = verify_by_rejection(logits, drafts, rows, **how)
    positions = rows.seq_lens[:, None] + 1 + jnp.arange(logits.shape[1])
    scores = process_logits(logits, positions, rows.options)
    seed = rows.options.seed[:, None]
    drawn = rejection.draw(logits, scores, positions, seed, rows.options)
    kept = jnp.arange(logits.shape[1]) < result.num_accepted[:, None]
    return result._replace(token_ids=jnp.where(kept, result.token_ids, drawn))


def distributions_in_another_order(
    logits: jax.Array, drafts: Drafts, rows: SlotRows, **how: Any
) -> VerifyResult:
    """Holds each draft against the distribution of the draft before it."""
    assert drafts.probs is not None
    return verify_by_rejection(
        logits, drafts._replace(probs=jnp.roll(drafts.probs, 1, axis=1)), rows, **how
    )


def never_subtracts_beyond_the_draft(
    logits: jax.Array, drafts: Drafts, rows: SlotRows, **how: Any
) -> VerifyResult:
    """Takes q for the target's own distribution: whatever was drafted is accepted."""
    positions = rows.seq_lens[:, None] + 1 + jnp.arange(logits.shape[1])
    scores = process_logits(logits, positions, rows.options)
    distribution = probabilities(scores, rows.options.temperature)[:, :-1]
    return verify_by_rejection(logits, drafts._replace(probs=distribution), rows, **how)


BROKEN = (
    one_more,
    replaces_from_p,
    distributions_in_another_order,
    never_subtracts_beyond_the_draft,
)


def reaches_a_draft_by_its_weight(
    weights: jax.Array, left: jax.Array, goes_on: jax.Array
) -> jax.Array:
    """Stands in for the thresholds of a block: every draft is treated like the last."""
    return weights[:, 1:]


def weights_beyond_one(p_draft: jax.Array, q_draft: jax.Array) -> jax.Array:
    """Stands in for the weights of a block: products that are not cut to 1."""
    ratios = jnp.where(q_draft > 0, p_draft / jnp.where(q_draft > 0, q_draft, 1), 0)
    return jnp.pad(jnp.cumprod(ratios, axis=1), ((0, 0), (1, 0)), constant_values=1)


def distribution_without_options(
    logits: jax.Array,
    positions: jax.Array,
    starts: jax.Array,
    options: SamplingRows,
    target_ids: Any,
    vocab_size: int,
    *axes: Axis,
) -> tuple[jax.Array, jax.Array]:
    """Draws with the request's options and reports the distribution without them."""
    tokens, _ = draw_with_probs(logits, positions, starts, options, target_ids, vocab_size, *axes)
    zeros = jnp.zeros_like(options.top_p)
    bare = replace(options, top_k=jnp.zeros_like(options.top_k), top_p=zeros + 1, min_p=zeros)
    _, probs = draw_with_probs(logits, positions, starts, bare, target_ids, vocab_size, *axes)
    return tokens, probs


def shared(digits: Mapping[Stream, int], stream: Stream, other: Stream) -> dict[Stream, int]:
    """Streams of which one takes its noise from another."""
    return {**digits, stream: digits[other]}
