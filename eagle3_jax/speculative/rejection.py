"""Verification by rejection sampling: the output follows the target's distribution p exactly.

Token by token, a draft from q is accepted with probability min(1, p / q) (Leviathan et al., arXiv
2211.17192). By block, all drafts of a round are decided together (Sun et al., arXiv 2403.10444),
which accepts as many or more. Both differ from plain decoding with the same seed: the output
depends on the draft and on where rounds begin. Independent noise streams draw the draft, accept it,
draw from the residual and draw the bonus token. The last stream is the request's own, so without a
draft this is plain decoding.

Noise of drafts and of their acceptance is new in every round: a block's decision depends on drafts
past those it accepts, so noise that were a function of the position alone would be seen again by
the next round. Of the other two streams a round uses one position, which it commits.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from eagle3_jax.collectives import Axis, all_max, all_sum
from eagle3_jax.sampling.noise import Stream, uniform
from eagle3_jax.sampling.sampler import draw, probabilities, process_logits
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.verify import VerifyResult, commit_prefix, num_valid_drafts
from eagle3_jax.vocabulary import value_at


def verify_by_rejection(
    logits: Float[Array, "batch width vocab"],
    drafts: Drafts,
    rows: SlotRows,
    axis: Axis = None,
    *,
    block: bool = False,
) -> VerifyResult:
    """Accept a prefix of drafts, each by its own u < p / q or as a block, and draw the next token.

    p and q are probabilities after all options. u is in [0, 1), so p = 0 is never accepted; nor is
    q = 0, a draft that was not drawn. A rejected draft is replaced by a token from the residual
    max(w p - q, 0), or from p if that is zero everywhere. w is 1, or in a block the weight of the
    drafts before. The token after the last valid draft is drawn from p. At temperature 0 both are
    one-hot. `axis` splits logits and q (eagle3_jax.vocabulary).
    """
    assert drafts.probs is not None, "rejection sampling needs the probabilities of each draft"
    offsets = jnp.arange(logits.shape[1])
    positions = rows.seq_lens[:, None] + 1 + offsets
    valid = offsets < num_valid_drafts(rows)[:, None]
    scores = process_logits(logits, positions, rows.options, axis=axis)
    p, q = probabilities(scores, rows.options.temperature, axis)[:, :-1], drafts.probs
    p_draft, q_draft = value_at(p, drafts.ids, axis), value_at(q, drafts.ids, axis)
    u = uniform(Stream.ACCEPT.seed(rows.options.seed, rows.seq_lens), positions[:, :-1])
    weights = _weights(p_draft, q_draft) if block else jnp.ones(positions.shape)
    residual = jnp.maximum(weights[:, :-1, None] * p - q, 0)
    left = all_sum(residual.sum(-1), axis)
    if block:
        goes_on = valid[:, 1:-1] & all_max((p[:, 1:] > 0).any(-1), axis)
        kept = valid[:, :-1] & (u < _thresholds(weights, left, goes_on))
        accepted = lax.cummax(kept.astype(jnp.int32), axis=1, reverse=True) > 0
    else:
        accepted = valid[:, :-1] & (q_draft > 0) & (u * q_draft < p_draft)
    replaces = valid & (jnp.pad(left, ((0, 0), (0, 1))) > 0)
    residual = jnp.pad(residual, ((0, 0), (0, 1), (0, 0)))
    scores = jnp.where(replaces[..., None], jnp.log(residual), scores)
    own, other = rows.options.seed[:, None], Stream.RESIDUAL.seed(rows.options.seed)[:, None]
    seed = jnp.where(valid[..., None], other, own)
    chosen = draw(logits, scores, positions, seed, rows.options, axis=axis)
    return commit_prefix(accepted, drafts.ids, chosen, rows)


def _weights(
    p_draft: Float[Array, "batch k"], q_draft: Float[Array, "batch k"]
) -> Float[Array, "batch width"]:
    """Return w before each row: the product of p / q over the drafts so far, cut to 1 at each."""
    weights = [jnp.ones_like(p_draft[:, 0])]
    for p, q in zip(p_draft.T, q_draft.T, strict=True):
        drawn = q > 0
        ratio = jnp.where(drawn, p / jnp.where(drawn, q, 1), 0)
        weights.append(jnp.minimum(weights[-1] * ratio, 1))
    return jnp.stack(weights, axis=1)


def _thresholds(
    weights: Float[Array, "batch width"],
    left: Float[Array, "batch k"],
    goes_on: Bool[Array, "batch k_minus_1"],
) -> Float[Array, "batch k"]:
    """Return the probability that a block reaches each draft, given that it ends at none after it.

    It is left / (left + 1 - w), with w and the residual's mass `left` in the row after the draft.
    Where the block ends, at the last valid draft or before a row without candidates, it is w.
    """
    w = weights[:, 1:]
    mass = jnp.concatenate([jnp.where(goes_on, left[:, 1:], w[:, :-1]), w[:, -1:]], axis=1)
    return jnp.where(w < 1, mass / (mass + (1 - w)), 1)
