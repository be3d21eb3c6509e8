"""Prefill of one chunk of one prompt, with the draft one position behind the target."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.cache import view_pages
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.logprobs import Logprobs, TokenLogprobs, sampled_logprobs, token_logprobs
from eagle3_jax.sampling.rows import lean_rows
from eagle3_jax.sampling.sampler import nan_if_nonfinite, sample
from eagle3_jax.sampling.token_mask import mask_logits
from eagle3_jax.speculative.head_choice import choose_in_kernel
from eagle3_jax.speculative.logit_control_rows import open_controls
from eagle3_jax.speculative.logit_controls import control_logits
from eagle3_jax.speculative.method import Variant
from eagle3_jax.speculative.state import NO_ROW, DecodeState, PrefillChunk, SlotRows
from eagle3_jax.speculative.verify import is_stop

PARTS = slice(None, -1), slice(1, None)
"""Slices of a chunk plus its next token: the target's input, and the draft's paired tokens."""
PROMPT_ROWS = 16
"""Prompt rows whose logits are in memory together: 10 MB at 163,840 ids."""


def prefill_chunk(
    target: Target,
    draft: Eagle3Draft | None,
    aux_layer_ids: tuple[int, ...],
    state: DecodeState,
    chunk: PrefillChunk,
    *,
    variant: Variant = Variant.LEAN,
    score_prompt: bool = False,
    draft_sees_images: bool = False,
) -> tuple[DecodeState, Int[Array, "1 report"], Logprobs | None]:
    """Write a chunk's KV to both caches; after the last chunk, sample a token and open the slot.

    Returns the state, a report in a round's form ([1 token, number committed]) and, for full
    programs, the token's logprobs; with `score_prompt` also those of the token after each row. A
    full `variant` needs a chunk with logit_controls. With `draft_sees_images` the draft gets the
    target's image rows instead of the placeholder's embedding.
    """
    size = chunk.tokens.shape[0] - 1
    offsets = jnp.arange(size)[None]
    positions = chunk.start + jnp.minimum(offsets, chunk.length - 1)
    page_size = state.target_pools[0].shape[1]
    pages = view_pages(chunk.page_table, positions, offsets < chunk.length, page_size)
    images = _image_rows(state, chunk)
    own, following = ({name: rows[:, part] for name, rows in images.items()} for part in PARTS)
    hidden, aux_hidden, target_pools = target(
        chunk.tokens[None, :-1], positions, aux_layer_ids, state.target_pools, pages, **own
    )
    draft_pools = state.draft_pools
    if draft is not None:
        # The prompt's last row needs the token sampled below, so the first round's draft pass
        # writes it.
        known = offsets < chunk.length - chunk.last
        draft_pages = view_pages(chunk.page_table, positions, known, page_size)
        features = draft.fuse(aux_hidden)
        seen = following if draft_sees_images else {}
        _, draft_pools = draft(
            chunk.tokens[None, 1:], features, positions, draft_pools, draft_pages, **seen
        )
    token, sampled = _first_token(target, hidden, chunk, variant)
    prompt = _prompt_logprobs(target, hidden, chunk.tokens[None, 1:]) if score_prompt else None
    logprobs = None if sampled is None else Logprobs(sampled, prompt)
    feature = jax.lax.dynamic_slice_in_dim(aux_hidden, chunk.length - 1, 1, axis=1)
    slots = _open_slot(state.slots, chunk, token, feature)
    report = jnp.concatenate([token, chunk.last.astype(jnp.int32).reshape(1, 1)], axis=1)
    logit_controls = open_controls(state.logit_controls, chunk.logit_controls, chunk.slot, token)
    written = replace(
        state,
        target_pools=target_pools,
        draft_pools=draft_pools,
        slots=slots,
        logit_controls=logit_controls,
    )
    return written, report, logprobs


def _image_rows(state: DecodeState, chunk: PrefillChunk) -> dict[str, Array]:
    """Return image features and mask [1, chunk + 1, ...] of a chunk and the next token, if any."""
    if state.image_features is None or chunk.feature_rows is None:
        return {}
    is_image = chunk.feature_rows != NO_ROW
    rows = jnp.where(is_image, chunk.feature_rows, 0)
    features = state.image_features.at[rows].get(mode="promise_in_bounds")
    return {"features": features[None], "is_image": is_image[None]}


def _first_token(
    target: Target, hidden: Float[Array, "1 size hidden"], chunk: PrefillChunk, variant: Variant
) -> tuple[Int[Array, "1 1"], TokenLogprobs | None]:
    """Sample the token after the chunk; a full prefill applies all options and adds logprobs."""
    final = jax.lax.dynamic_slice_in_dim(hidden, chunk.length - 1, 1, axis=1)
    position = (chunk.start + chunk.length).reshape(1, 1)
    axis = target.vocab_axis
    if variant is Variant.ARGMAX:
        normed, head = target.normed(final), target.lm_head.kernel.get_value()
        return choose_in_kernel(normed, head, position, chunk.options, axis=axis), None
    logits = nan_if_nonfinite(target.logits(final), axis)
    if chunk.logit_controls is None:
        return sample(logits, position, lean_rows(chunk.options), axis=axis), None
    logit_controls, options = chunk.logit_controls, chunk.options
    no_drafts = jnp.zeros((1, 0), jnp.int32)
    controlled = control_logits(logits, position, no_drafts, options, logit_controls, axis=axis)
    mask = None if chunk.mask is None else chunk.mask[:, None]
    controlled = mask_logits(controlled, mask, axis=axis)
    token = sample(controlled, position, options, axis=axis)
    processed = logit_controls.processed_logprobs
    return token, sampled_logprobs(logits, controlled, position, token, options, processed, axis)


def _prompt_logprobs(
    target: Target, hidden: Float[Array, "1 size hidden"], next_ids: Int[Array, "1 size"]
) -> TokenLogprobs:
    """Compute raw logprobs [1, size] of the token after each row, PROMPT_ROWS rows at a time."""
    size = hidden.shape[1]
    block = min(PROMPT_ROWS, size)
    blocks = -(-size // block)
    rows = jnp.pad(hidden, ((0, 0), (0, blocks * block - size), (0, 0)))
    ids = jnp.pad(next_ids, ((0, 0), (0, blocks * block - size)))
    scored = jax.lax.map(
        lambda part: token_logprobs(target.logits(part[0]), part[1], target.vocab_axis),
        (rows.reshape(blocks, block, -1), ids.reshape(blocks, block)),
    )
    return jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:])[:, :size], scored)


def _open_slot(
    slots: SlotRows,
    chunk: PrefillChunk,
    token: Int[Array, "1 1"],
    feature: Float[Array, "1 1 aux"],
) -> SlotRows:
    """Write the slot's row, from which rounds continue. It is finished until the last chunk."""
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
        pause_id=chunk.pause_id[None],
        options=chunk.options,
    )
    ends = is_stop(token, row)[:, 0] | (length + 1 >= chunk.max_len)
    row = replace(row, finished=row.finished | ends)
    return jax.tree.map(
        lambda slot, new: slot.at[chunk.slot].set(new[0], mode="promise_in_bounds"), slots, row
    )
