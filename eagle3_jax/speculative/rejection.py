"""Verification by rejection sampling: accept a draft from q with probability min(1, p / q).

The output follows p exactly (Leviathan et al., arXiv 2211.17192), but differs from plain decoding
with the same seed: it depends on the draft and on where rounds begin. Independent noise streams,
each a function of (seed, position), draw the draft, accept it, draw from the residual and draw the
bonus token. The last stream is the request's own, so without a draft this is plain decoding. A
position that is drafted again sees the same noise. This is harmless, because no earlier committed
token depends on it.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle3_jax.collectives import Axis, all_max
from eagle3_jax.sampling.noise import Stream, uniform
from eagle3_jax.sampling.sampler import draw, probabilities, process_logits
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.verify import VerifyResult, commit_prefix, num_valid_drafts
from eagle3_jax.vocabulary import value_at


def verify_by_rejection(
    logits: Float[Array, "batch width vocab"], drafts: Drafts, rows: SlotRows, axis: Axis = None
) -> VerifyResult:
    """Accept the longest prefix of drafts, each by its own u < p / q, and draw the next token.

    p and q are probabilities after all options. u is in [0, 1), so p = 0 is never accepted; nor is
    q = 0, a draft that was not drawn. A rejected draft is replaced by a token from max(p - q, 0),
    or from p if that is zero everywhere. The token after the last valid draft is drawn from p. At
    temperature 0 both are one-hot. `axis` splits logits and q (eagle3_jax.vocabulary).
    """
    assert drafts.probs is not None, "rejection sampling needs the probabilities of each draft"
    offsets = jnp.arange(logits.shape[1])
    positions = rows.seq_lens[:, None] + 1 + offsets
    valid = offsets < num_valid_drafts(rows)[:, None]
    scores = process_logits(logits, positions, rows.options, axis=axis)
    p, q = probabilities(scores, rows.options.temperature, axis)[:, :-1], drafts.probs
    p_draft, q_draft = value_at(p, drafts.ids, axis), value_at(q, drafts.ids, axis)
    u = uniform(Stream.ACCEPT.seed(rows.options.seed), positions[:, :-1])
    accepted = valid[:, :-1] & (q_draft > 0) & (u * q_draft < p_draft)
    residual = jnp.pad(jnp.maximum(p - q, 0), ((0, 0), (0, 1), (0, 0)))
    replaces = valid & all_max((residual > 0).any(-1), axis)
    scores = jnp.where(replaces[..., None], jnp.log(residual), scores)
    own, other = rows.options.seed[:, None], Stream.RESIDUAL.seed(rows.options.seed)[:, None]
    seed = jnp.where(valid[..., None], other, own)
    chosen = draw(logits, scores, positions, seed, rows.options, axis=axis)
    return commit_prefix(accepted, drafts.ids, chosen, rows)
