"""Prefill one chunk of one prompt, the draft one position behind the target."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.cache import view_pages
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling import sample, spoil_infinite
from eagle3_jax.speculative.controls import control_logits, open_controls
from eagle3_jax.speculative.state import DecodeState, PrefillChunk, SlotRows
from eagle3_jax.speculative.verify import is_stop
from eagle3_jax.token_mask import mask_logits


def prefill_chunk(
    target: KimiTarget,
    draft: Eagle3Draft | None,
    aux_layer_ids: tuple[int, ...],
    state: DecodeState,
    chunk: PrefillChunk,
) -> tuple[DecodeState, Int[Array, "1 report"]]:
    """Writes the chunk's KV in both caches; after the last chunk samples and opens the slot.

    Returns the state and a report in a round's form: [1 token, number committed].
    """
    size = chunk.tokens.shape[0] - 1
    offsets = jnp.arange(size)[None]
    positions = chunk.start + jnp.minimum(offsets, chunk.length - 1)
    page_size = state.target_pools[0].shape[1]
    pages = view_pages(chunk.page_table, positions, offsets < chunk.length, page_size)
    hidden, aux_hidden, target_pools = target(
        chunk.tokens[None, :-1], positions, aux_layer_ids, state.target_pools, pages
    )
    draft_pools = state.draft_pools
    if draft is not None:
        # The prompt's last row needs the token sampled below: the first round's draft pass does it.
        known = offsets < chunk.length - chunk.last
        draft_pages = view_pages(chunk.page_table, positions, known, page_size)
        features = draft.fuse(aux_hidden)
        _, draft_pools = draft(
            chunk.tokens[None, 1:], features, positions, draft_pools, draft_pages
        )
    final = jax.lax.dynamic_slice_in_dim(hidden, chunk.length - 1, 1, axis=1)
    position = (chunk.start + chunk.length).reshape(1, 1)
    logits = spoil_infinite(target.logits(final))
    if chunk.controls is not None:
        no_drafts = jnp.zeros((1, 0), jnp.int32)
        logits = control_logits(logits, position, no_drafts, chunk.options, chunk.controls)
    if chunk.mask is not None:
        logits = mask_logits(logits, chunk.mask[:, None])
    token = sample(logits, position, chunk.options)
    feature = jax.lax.dynamic_slice_in_dim(aux_hidden, chunk.length - 1, 1, axis=1)
    slots = _open_slot(state.slots, chunk, token, feature)
    report = jnp.concatenate([token, chunk.last.astype(jnp.int32).reshape(1, 1)], axis=1)
    controls = open_controls(state.controls, chunk.controls, chunk.slot, token)
    return DecodeState(target_pools, draft_pools, slots, controls), report


def _open_slot(
    slots: SlotRows,
    chunk: PrefillChunk,
    token: Int[Array, "1 1"],
    feature: Float[Array, "1 1 aux"],
) -> SlotRows:
    """The row from which rounds go on; it stays closed until the last chunk."""
    width = slots.verified_tokens.shape[1]
    length = chunk.start + chunk.length
    row = SlotRows(
        seq_lens=length[None],
        max_lens=chunk.max_len[None],
        num_drafts=chunk.num_drafts[None],
        verified_tokens=jnp.pad(token, ((0, 0), (0, width - 1))),
        num_accepted=jnp.zeros((1,), jnp.int32),
        aux_hidden=jnp.pad(feature, ((0, 0), (0, width - 1), (0, 0))),
        finished=~chunk.last[None],
        options=chunk.options,
    )
    ends = is_stop(token, row)[:, 0] | (length + 1 >= chunk.max_len)
    row = replace(row, finished=row.finished | ends)
    return jax.tree.map(
        lambda slot, new: slot.at[chunk.slot].set(new[0], mode="promise_in_bounds"), slots, row
    )
