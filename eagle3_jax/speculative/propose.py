"""Proposal of k draft tokens: one pass over the last verified rows, then k-1 single steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from eagle3_jax.cache import KVPools, view_pages
from eagle3_jax.collectives import Axis, all_columns, num_devices
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.sampling.noise import Stream
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import draw, probabilities, process_logits, sample
from eagle3_jax.sampling.token_mask import mask_logits
from eagle3_jax.speculative.head_choice import choose_in_kernel, chooses_in_kernel
from eagle3_jax.speculative.logit_controls import control_logits
from eagle3_jax.speculative.round_state import RoundBatch
from eagle3_jax.vocabulary import own_columns


class Drafts(NamedTuple):
    """Drafts as target ids, with the probabilities q that rejection sampling needs.

    q is over target ids: 0 outside the draft's vocabulary and in rows without candidates. It is
    split like the target's vocabulary. With lookup, the last `looked_up` ids of each row
    are copies of earlier tokens.
    """

    ids: Int[Array, "batch k"]
    probs: Float[Array, "batch k vocab"] | None = None
    looked_up: Int[Array, " batch"] | None = None


def draw_with_probs(
    logits: Float[Array, "batch rows draft_vocab"],
    positions: Int[Array, "batch rows"],
    starts: Int[Array, " batch"],
    options: SamplingRows,
    target_ids: Int[Array, " draft_vocab"] | None,
    vocab_size: int,
    axis: Axis = None,
    target_axis: Axis = None,
) -> tuple[Int[Array, "batch rows"], Float[Array, "batch rows vocab"]]:
    """Draw like `sample`, but with the draft's own noise, and return the probabilities q too.

    `starts` are the lengths at which the rounds begin. `axis` splits the draft's vocabulary,
    `target_axis` the target's.
    """
    scores = process_logits(logits, positions, options, target_ids, axis)
    seed = Stream.DRAFT.seed(options.seed, starts)[:, None]
    tokens = draw(logits, scores, positions, seed, options, target_ids, axis)
    probs = probabilities(scores, options.temperature, axis)
    if target_ids is None and axis == target_axis:
        return tokens, probs
    # The columns of a reduced vocabulary are not where the target has the same ids.
    probs = all_columns(probs, axis)
    if target_ids is not None:
        ids = all_columns(target_ids, axis)
        probs = jnp.zeros((*probs.shape[:2], vocab_size)).at[..., ids].set(probs)
    return tokens, own_columns(probs, vocab_size // num_devices(target_axis), axis=target_axis)


def propose(
    draft: Eagle3Draft,
    batch: RoundBatch,
    pools: KVPools,
    num_speculative_tokens: int,
    masks: UInt32[Array, "batch 1 words"] | None = None,
    *,
    with_probs: bool = False,
    target_axis: Axis = None,
) -> tuple[Drafts, KVPools]:
    """Return k drafts per row and the draft's pools.

    `masks` are the allowed ids of the first draft, one bit each (eagle3_jax.sampling.token_mask).
    `with_probs`, for rejection sampling, draws with the draft's own noise and returns
    probabilities, split over `target_axis`. With k = 0 only the first pass runs, without its head,
    so draft KV never has holes.
    """
    rows, page_table, active = batch.rows, batch.page_table, batch.active
    hidden, pools = first_pass(draft, batch, pools)
    drafted: list[Int[Array, " batch"]] = []
    probs: list[Float[Array, "batch vocab"] | None] = []
    for step in range(num_speculative_tokens):
        with jax.named_scope(f"draft_step_{step}"):
            if step > 0:
                positions = rows.seq_lens[:, None] + (step - 1)
                pages = view_pages(page_table, positions, active[:, None], pools[0].shape[1])
                token = drafted[-1][:, None]
                hidden, pools = draft(token, hidden, positions, pools, pages)
            allowed = masks if step == 0 else None
            options = allowed, with_probs, target_axis
            token, q = _sample_draft(draft, hidden, batch, drafted, *options)
            drafted.append(token)
            probs.append(q)
    ids = jnp.stack(drafted, axis=1) if drafted else jnp.zeros((len(active), 0), jnp.int32)
    kept = [q for q in probs if q is not None]
    return Drafts(ids, jnp.stack(kept, axis=1) if kept else None), pools


def first_pass(
    draft: Eagle3Draft, batch: RoundBatch, pools: KVPools
) -> tuple[Float[Array, "batch 1 hidden"], KVPools]:
    """Run the draft on the true features of the last verified rows, overwriting draft steps' KV.

    Row j pairs the token at position p+1 with the features of p = n - a - 1 + j. Rows past the
    accepted ones repeat the last position, so that they see nothing stale, and write to scratch.
    """
    rows = batch.rows
    offsets = jnp.arange(rows.verified_tokens.shape[1])
    kept = offsets <= rows.num_accepted[:, None]
    first = rows.seq_lens - rows.num_accepted - 1
    positions = first[:, None] + jnp.minimum(offsets, rows.num_accepted[:, None])
    writes = kept & batch.active[:, None]
    pages = view_pages(batch.page_table, positions, writes, pools[0].shape[1])
    with jax.named_scope("draft_first_pass"):
        features = draft.fuse(rows.aux_hidden)
        hidden, pools = draft(rows.verified_tokens, features, positions, pools, pages)
    return jnp.take_along_axis(hidden, rows.num_accepted[:, None, None], axis=1), pools


def _sample_draft(
    draft: Eagle3Draft,
    hidden: Float[Array, "batch 1 hidden"],
    batch: RoundBatch,
    drafted: list[Int[Array, " batch"]],
    masks: UInt32[Array, "batch 1 words"] | None,
    with_probs: bool,
    target_axis: Axis,
) -> tuple[Int[Array, " batch"], Float[Array, "batch vocab"] | None]:
    """Sample a draft with the target's noise, so that equal distributions pick equal tokens.

    With `with_probs`, sample with noise of its own and return probabilities. The request's options
    apply to drafts too, because a token that the target may not pick is a lost draft. If the draft
    has no candidate, any token will do.
    """
    rows, logit_controls, biases = batch.rows, batch.logit_controls, batch.biases
    positions, ids = rows.seq_lens[:, None] + 1 + len(drafted), draft.target_ids
    axis = draft.vocab_axis
    lean = logit_controls is None and masks is None and not with_probs
    if biases is not None or (lean and chooses_in_kernel()):
        normed, head = draft.normed(hidden), draft.lm_head.kernel.get_value()
        token = choose_in_kernel(normed, head, positions, rows.options, biases, ids, axis=axis)
        return jnp.maximum(token[:, 0], 0), None
    logits = draft.logits(hidden)
    if logit_controls is not None:
        before = (
            jnp.stack(drafted, axis=1) if drafted else jnp.zeros((len(positions), 0), jnp.int32)
        )
        logits = control_logits(logits, positions, before, rows.options, logit_controls, ids, axis)
    logits = mask_logits(logits, masks, ids, axis)
    if not with_probs:
        return jnp.maximum(sample(logits, positions, rows.options, ids, axis)[:, 0], 0), None
    vocab_size = draft.config.vocab_size
    tokens, q = draw_with_probs(
        logits, positions, rows.seq_lens, rows.options, ids, vocab_size, axis, target_axis
    )
    return jnp.maximum(tokens[:, 0], 0), q[:, 0]
