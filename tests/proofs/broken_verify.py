"""Ways to get verification wrong, each of which a proof has to notice."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from eagle3_jax.collectives import Axis
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.verify import VerifyResult, num_valid_drafts, verify


def one_more(
    logits: jax.Array, draft_ids: jax.Array, rows: SlotRows, axis: Axis = None
) -> VerifyResult:
    """Accepts one draft past those that agree: its successor comes from a wrong history."""
    result = verify(logits, draft_ids, rows, axis)
    more = jnp.minimum(result.num_accepted + 1, num_valid_drafts(rows))
    return result._replace(num_accepted=more)


def counts_agreements(
    logits: jax.Array, draft_ids: jax.Array, rows: SlotRows, axis: Axis = None
) -> VerifyResult:
    """Accepts as many drafts as agree anywhere, not the longest prefix."""
    result = verify(logits, draft_ids, rows, axis)
    agrees = (draft_ids == result.token_ids[:, :-1]).sum(axis=1)
    return result._replace(num_accepted=jnp.minimum(agrees, num_valid_drafts(rows)))


def noise_of_the_draft(
    logits: jax.Array, draft_ids: jax.Array, rows: SlotRows, axis: Axis = None
) -> VerifyResult:
    """Draws with noise that depends on what was drafted."""
    seed = rows.options.seed.at[:, 0].add(draft_ids[:, 0].astype(jnp.uint32))
    broken = replace(rows, options=replace(rows.options, seed=seed))
    return verify(logits, draft_ids, broken, axis)


def prefers_the_draft(
    logits: jax.Array, draft_ids: jax.Array, rows: SlotRows, axis: Axis = None
) -> VerifyResult:
    """Accepts a draft that scores nearly as well as the best, a common shortcut."""
    drafted = jnp.take_along_axis(logits[:, :-1], draft_ids[..., None], axis=-1)
    favoured = logits[:, :-1].max(axis=-1, keepdims=True) - drafted < 0.5
    bonus = 1e3 * favoured * jax.nn.one_hot(draft_ids, logits.shape[-1])
    return verify(logits.at[:, :-1].add(bonus), draft_ids, rows, axis)


def one_position_late(
    logits: jax.Array, draft_ids: jax.Array, rows: SlotRows, axis: Axis = None
) -> VerifyResult:
    """Draws every row with the noise of the position after it."""
    late = replace(rows, seq_lens=rows.seq_lens + 1, max_lens=rows.max_lens + 1)
    return verify(logits, draft_ids, late, axis)


BROKEN = (one_more, counts_agreements, noise_of_the_draft, prefers_the_draft, one_position_late)
