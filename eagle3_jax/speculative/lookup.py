"""Drafts looked up in a sequence's own tokens: the continuation of its last tokens' latest copy.

The decode state holds the tokens of each slot. The host writes a prompt when its slot opens, cached
pages included; rounds add the tokens that the round before committed. Shapes are static and nothing
branches on data: every round compares each position of the history.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from eagle3_jax.collectives import Axis, first_column
from eagle3_jax.speculative.logit_control_rows import NO_TOKEN
from eagle3_jax.speculative.method import Lookup, Widths
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.round_state import RoundBatch
from eagle3_jax.speculative.state import DecodeState, widen


def record_tokens(
    history: Int[Array, "slots positions"], batch: RoundBatch
) -> Int[Array, "slots positions"]:
    """Write the tokens that the last program committed at positions n-a .. n."""
    rows = batch.rows
    offsets = jnp.arange(rows.verified_tokens.shape[1])
    kept = batch.active[:, None] & (offsets <= rows.num_accepted[:, None])
    positions = (rows.seq_lens - rows.num_accepted)[:, None] + offsets
    places = batch.slot_ids[:, None], jnp.where(kept, positions, history.shape[1])
    return history.at[places].set(rows.verified_tokens, mode="drop")


def look_up(
    history: Int[Array, "batch positions"],
    lengths: Int[Array, " batch"],
    count: int,
    lookup: Lookup,
) -> tuple[Int[Array, "batch count"], Int[Array, " batch"]]:
    """Return `count` tokens that may follow position `lengths`, and the matches' lengths or 0.

    A match is the longest suffix of lookup.shortest..longest tokens that also ends at an earlier
    position, the latest of equally long ones. Its continuation repeats with the distance of the
    two, so that a match near the end yields as many tokens. NO_TOKEN matches nothing.
    """
    size, longest = history.shape[1], lookup.longest
    last = lengths[:, None] - jnp.arange(longest)
    suffix = jnp.take_along_axis(history, jnp.maximum(last, 0), axis=1)
    suffix = jnp.where(last < 0, NO_TOKEN, suffix)
    padded = jnp.pad(history, ((0, 0), (longest - 1, 0)), constant_values=NO_TOKEN)
    ends = jnp.arange(size)
    equal = jnp.broadcast_to(ends < lengths[:, None], history.shape)
    matched = jnp.zeros(history.shape, jnp.int32)
    for back in range(longest):
        before = padded[:, longest - 1 - back : longest - 1 - back + size]
        equal &= (before == suffix[:, back, None]) & (before != NO_TOKEN)
        matched += equal
    best = jnp.max(jnp.where(matched >= lookup.shortest, matched * size + ends, 0), axis=1)
    end = jnp.where(best > 0, best % size, lengths - 1)[:, None]
    following = end + 1 + jnp.arange(count) % (lengths[:, None] - end)
    tokens = jnp.take_along_axis(history, following, axis=1, mode="clip")
    return jnp.maximum(tokens, 0), best // size


def add_copies(
    state: DecodeState,
    batch: RoundBatch,
    drafts: Drafts,
    lookup: Lookup,
    widths: Widths,
    axis: Axis,
) -> tuple[DecodeState, Drafts]:
    """Return the state with the rows' tokens recorded, and drafts of which some are looked up.

    A match of lookup.longest tokens replaces the draft model's chain. A shorter one, which is wrong
    more often than the model, extends a chain that agrees with it. Without a draft model the chain
    is empty, so that every match counts. A looked-up draft has probability one. `axis` splits the
    probabilities like the target's vocabulary.
    """
    assert state.history is not None, "an engine with lookup keeps the tokens"
    chain, width = _chain(state, widths), widths.lookup
    with jax.named_scope("lookup"):
        history = record_tokens(state.history, batch)
        own = history.at[batch.slot_ids].get(mode="promise_in_bounds")
        tokens, matched = look_up(own, batch.rows.seq_lens, width, lookup)
        agrees = (matched > 0) & (drafts.ids[:, :chain] == tokens[:, :chain]).all(axis=1)
        first = jnp.where(matched == lookup.longest, 0, jnp.where(agrees, chain, width))[:, None]
        is_copy = jnp.arange(width) >= first
        ids = jnp.where(is_copy, tokens, widen(drafts.ids, width))
        probs = drafts.probs
        if probs is not None:
            columns = first_column(probs.shape[-1], axis) + jnp.arange(probs.shape[-1])
            certain = (ids[..., None] == columns).astype(probs.dtype)
            probs = jnp.where(is_copy[..., None], certain, widen(probs, width))
    copied = is_copy.sum(axis=1, dtype=jnp.int32)
    return replace(state, history=history), Drafts(ids, probs, copied)


def draft_limits(
    state: DecodeState, looked_up: Int[Array, " batch"], widths: Widths
) -> Int[Array, " batch"]:
    """Limit rows without looked-up drafts to the draft model's chain."""
    return jnp.where(looked_up > 0, widths.lookup, _chain(state, widths))


def _chain(state: DecodeState, widths: Widths) -> int:
    """Return the number of drafts that a draft model makes."""
    return widths.drafts if state.draft_pools else 0
