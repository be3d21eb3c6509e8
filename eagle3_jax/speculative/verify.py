"""Verification by coupling: accept the drafts that the target would have picked itself.

A draft is accepted iff it equals the target's own choice at that position, at any temperature. Both
use the same noise (sampling.sampler), so the output depends on the target alone. Code shared by all
methods is here too.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.collectives import Axis
from eagle3_jax.sampling.sampler import sample
from eagle3_jax.speculative.state import SlotRows


class VerifyResult(NamedTuple):
    """Result of a verification; the first num_accepted + 1 tokens are committed.

    `token_ids` [batch, k+1] are the target's choices, or accepted drafts in their place.
    """

    token_ids: Int[Array, "batch width"]
    num_accepted: Int[Array, " batch"]
    finished: Bool[Array, " batch"]


def num_valid_drafts(rows: SlotRows) -> Int[Array, " batch"]:
    """Return the drafts a row may commit: at most `num_drafts`, and as the length limit allows.

    Committing a drafts and a bonus token fills positions up to n + a + 1, all below max_lens.
    """
    return jnp.clip(rows.max_lens - rows.seq_lens - 2, 0, rows.num_drafts)


def verify(
    logits: Float[Array, "batch width vocab"],
    draft_ids: Int[Array, "batch k"],
    rows: SlotRows,
    axis: Axis = None,
) -> VerifyResult:
    """Sample every row from the target and accept the longest prefix of drafts that agrees.

    Row j's logits decide position n + 1 + j. A row is finished after a committed stop id or at full
    length. `axis` splits the logits (eagle3_jax.vocabulary).
    """
    positions = rows.seq_lens[:, None] + 1 + jnp.arange(logits.shape[1])
    return accept_equal(sample(logits, positions, rows.options, axis=axis), draft_ids, rows)


def accept_equal(
    chosen: Int[Array, "batch width"], draft_ids: Int[Array, "batch k"], rows: SlotRows
) -> VerifyResult:
    """Accept the longest prefix of drafts equal to the target's choices, up to a pausing token."""
    offsets = jnp.arange(chosen.shape[1])
    valid = offsets[:-1] < num_valid_drafts(rows)[:, None]
    agrees = valid & (draft_ids == chosen[:, :-1])
    return _commit_prefix(agrees, chosen, rows)


def commit_prefix(
    accepted: Bool[Array, "batch k"],
    draft_ids: Int[Array, "batch k"],
    chosen: Int[Array, "batch width"],
    rows: SlotRows,
) -> VerifyResult:
    """Commit the longest prefix of accepted drafts and the token chosen after it."""
    tokens = jnp.where(accepted, draft_ids, chosen[:, :-1])
    return _commit_prefix(accepted, jnp.concatenate([tokens, chosen[:, -1:]], axis=1), rows)


def _commit_prefix(
    accepted: Bool[Array, "batch k"], token_ids: Int[Array, "batch width"], rows: SlotRows
) -> VerifyResult:
    goes_on = accepted & (token_ids[:, :-1] != rows.pause_id[:, None])
    return settle(token_ids, jnp.sum(jnp.cumprod(goes_on, axis=1), axis=1), rows)


def settle(
    token_ids: Int[Array, "batch width"], num_accepted: Int[Array, " batch"], rows: SlotRows
) -> VerifyResult:
    """Commit `num_accepted` drafts and the next token, and finish rows that stop or are full."""
    committed = jnp.arange(token_ids.shape[1]) <= num_accepted[:, None]
    stops = is_stop(token_ids, rows) & committed
    full = rows.seq_lens + num_accepted + 2 >= rows.max_lens
    return VerifyResult(token_ids, num_accepted, stops.any(axis=1) | full)


def is_stop(token_ids: Int[Array, "batch rows"], rows: SlotRows) -> Bool[Array, "batch rows"]:
    """Return the mask of tokens that end their request, including codes for no candidate."""
    return (token_ids < 0) | (token_ids[..., None] == rows.options.stop_ids[:, None]).any(axis=-1)
