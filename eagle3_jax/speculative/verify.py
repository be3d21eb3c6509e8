"""Decide which drafts the target would have picked itself. No model, no cache.

A draft is accepted iff it equals the target's own choice at that position, at any temperature:
both use the same noise (see eagle3_jax.sampling), so what is emitted depends on the target alone.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.sampling import sample
from eagle3_jax.speculative.state import SlotRows


class VerifyResult(NamedTuple):
    """token_ids [batch, k+1]: the target's choices; the first num_accepted + 1 are committed."""

    token_ids: Int[Array, "batch width"]
    num_accepted: Int[Array, " batch"]
    finished: Bool[Array, " batch"]


def num_valid_drafts(rows: SlotRows) -> Int[Array, " batch"]:
    """Drafts a row may commit: at most what it asked for and what its length limit leaves room for.

    Committing a drafts and a bonus token fills positions up to n + a + 1, which must stay below
    max_lens.
    """
    return jnp.clip(rows.max_lens - rows.seq_lens - 2, 0, rows.num_drafts)


def verify(
    logits: Float[Array, "batch width vocab"], draft_ids: Int[Array, "batch k"], rows: SlotRows
) -> VerifyResult:
    """Samples every row from the target and accepts the longest prefix of drafts that agrees.

    Row j's logits decide position n + 1 + j. Finished: a committed stop id, or the length is full.
    """
    offsets = jnp.arange(logits.shape[1])
    positions = rows.seq_lens[:, None] + 1 + offsets
    chosen = sample(logits, positions, rows.options)
    valid = offsets[:-1] < num_valid_drafts(rows)[:, None]
    agrees = valid & (draft_ids == chosen[:, :-1])
    num_accepted = jnp.sum(jnp.cumprod(agrees, axis=1), axis=1)
    committed = offsets <= num_accepted[:, None]
    stops = is_stop(chosen, rows) & committed
    full = rows.seq_lens + num_accepted + 2 >= rows.max_lens
    return VerifyResult(chosen, num_accepted, stops.any(axis=1) | full)


def is_stop(token_ids: Int[Array, "batch rows"], rows: SlotRows) -> Bool[Array, "batch rows"]:
    """Which tokens end their request; where none could be chosen, it ends too."""
    return (token_ids < 0) | (token_ids[..., None] == rows.options.stop_ids[:, None]).any(axis=-1)
