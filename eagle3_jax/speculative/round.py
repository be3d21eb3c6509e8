"""One round of speculative decoding on the decode state: propose, verify, decide, commit.

k is unrolled, shapes are static and nothing on the device branches on data. Plain decoding is the
same round with k = 0. A batch with a grammar runs the two halves as two programs, because the masks
of the rows after a draft depend on the draft. A method with a tree drafts and verifies a tree in
place of a chain.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from eagle3_jax.cache import KVPools, view_pages
from eagle3_jax.collectives import Axis
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.logprobs import Logprobs, sampled_logprobs
from eagle3_jax.sampling.sampler import nan_if_nonfinite
from eagle3_jax.sampling.token_mask import mask_logits
from eagle3_jax.speculative.head_choice import choose_in_kernel
from eagle3_jax.speculative.logit_controls import control_logits
from eagle3_jax.speculative.lookup import add_copies, draft_limits
from eagle3_jax.speculative.method import COUPLED, SpeculationMethod, Variant, Widths
from eagle3_jax.speculative.propose import Drafts, propose
from eagle3_jax.speculative.propose_tree import propose_tree
from eagle3_jax.speculative.rejection import verify_by_rejection
from eagle3_jax.speculative.round_state import RoundBatch, commit_batch, read_batch
from eagle3_jax.speculative.state import DecodeState, SlotRows
from eagle3_jax.speculative.synthetic import accept_at_rates, verify_synthetic
from eagle3_jax.speculative.tree import Tree
from eagle3_jax.speculative.tree_round import verify_tree
from eagle3_jax.speculative.verify import VerifyResult, accept_equal, num_valid_drafts, verify


def speculative_round(
    target: Target,
    draft: Eagle3Draft | None,
    aux_layer_ids: tuple[int, ...],
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    limits: Int[Array, " batch"] | None = None,
    *,
    variant: Variant = Variant.LEAN,
    method: SpeculationMethod = COUPLED,
    widths: Widths | None = None,
) -> tuple[DecodeState, Int[Array, "batch report"], Logprobs | None]:
    """Advance the sequences in `slot_ids` by one round of width k+1, in one program.

    Returns the new state, a report row [k+1 tokens, number committed (0: the row was finished),
    drafts verified] per sequence and, for full rounds, the tokens' logprobs. With lookup the width
    is that of `widths`, and the last number includes the looked-up drafts (commit_batch). A row
    verifies at most `limits` drafts. `variant` says which options the round supports, `method` how
    drafts are drawn and accepted. A tree, which needs a draft, has k levels, each of which counts
    as one verified draft. `widths` are those of an engine that chooses k or looks up drafts;
    otherwise verified_tokens in the state has the width.
    """
    static: Any = {"variant": variant, "method": method, "widths": widths}
    state, drafts = propose_round(
        draft, state, slot_ids, page_table, **static, target_axis=target.vocab_axis
    )
    inputs = state, slot_ids, page_table, drafts
    return verify_round(target, aux_layer_ids, *inputs, limits=limits, **static)


def propose_round(
    draft: Eagle3Draft | None,
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    masks: UInt32[Array, "batch 1 words"] | None = None,
    *,
    variant: Variant = Variant.LEAN,
    method: SpeculationMethod = COUPLED,
    widths: Widths | None = None,
    target_axis: Axis = None,
) -> tuple[DecodeState, Drafts | Tree]:
    """Run the draft's half of a round: return the state with new draft KV, and drafts.

    Without a draft they are zeros. With lookup, earlier tokens replace or extend some of them.

    `masks` hold the allowed ids of the first draft or the root's children; later drafts depend on
    it. With masks paused rows resume. `target_axis` splits draft probabilities like the target's
    vocabulary.
    """
    batch = read_batch(state, slot_ids, page_table, variant, widths, resumes=masks is not None)
    if method.greedy_drafts:
        batch = batch._replace(rows=_at_temperature_zero(batch.rows))
    k = widths.drafts if widths else batch.whole.verified_tokens.shape[1] - 1
    if draft is None:
        assert not method.tree, "the runner refuses trees without a draft"
        drafts = Drafts(jnp.zeros((slot_ids.shape[0], k), jnp.int32))
    else:
        with jax.named_scope("propose"):
            if method.tree:
                drafts, pools = propose_tree(draft, batch, state.draft_pools, method.tree, masks)
            else:
                inputs = draft, batch, state.draft_pools, k, masks
                drafts, pools = propose(
                    *inputs, with_probs=method.needs_probs, target_axis=target_axis
                )
        state = replace(state, draft_pools=pools)
    if method.lookup is None:
        return state, drafts
    assert isinstance(drafts, Drafts) and widths, "lookup has chains, and widths of its own"
    return add_copies(state, batch, drafts, method.lookup, widths, target_axis)


def _at_temperature_zero(rows: SlotRows) -> SlotRows:
    options = rows.options
    return replace(rows, options=replace(options, temperature=jnp.zeros_like(options.temperature)))


def verify_round(
    target: Target,
    aux_layer_ids: tuple[int, ...],
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    drafts: Drafts | Tree,
    masks: UInt32[Array, "batch width words"] | None = None,
    *,
    limits: Int[Array, " batch"] | None = None,
    variant: Variant = Variant.LEAN,
    method: SpeculationMethod = COUPLED,
    widths: Widths | None = None,
) -> tuple[DecodeState, Int[Array, "batch report"], Logprobs | None]:
    """Run the target's half of a round: verify, decide, commit.

    A row verifies at most `limits` drafts. `masks` holds the allowed ids at each row's position or
    tree node, one bit each (sampling.token_mask), in full rounds only. Paused rows resume if masks
    are given.
    """
    looked_up = drafts.looked_up if isinstance(drafts, Drafts) else None
    if looked_up is not None and widths:
        assert limits is None, "lookup has limits of its own"
        limits = draft_limits(state, looked_up, widths)
    resumes = masks is not None
    batch = read_batch(state, slot_ids, page_table, variant, widths, limits=limits, resumes=resumes)
    batch = batch._replace(looked_up=looked_up)
    models = target, aux_layer_ids
    if isinstance(drafts, Tree):
        verified = verify_tree(*models, state.target_pools, batch, drafts, masks)
    else:
        verified = _verify_chain(*models, state.target_pools, batch, drafts, masks, method)
    result, aux_hidden, pools, logprobs = verified
    state, report = commit_batch(state, batch, result, aux_hidden, pools)
    return state, report, logprobs


def _verify_chain(
    target: Target,
    aux_layer_ids: tuple[int, ...],
    pools: KVPools,
    batch: RoundBatch,
    drafts: Drafts,
    masks: UInt32[Array, "batch width words"] | None,
    method: SpeculationMethod,
) -> tuple[VerifyResult, Float[Array, "batch width aux"], KVPools, Logprobs | None]:
    """Run [last token, d1..dk] through the target at positions n..n+k, and decide.

    Rows past the valid drafts repeat the last valid row, so that they read no other expert and no
    other KV, and write to scratch.
    """
    rows = batch.rows
    with jax.named_scope("verify"):
        tokens = jnp.concatenate([rows.last_tokens, drafts.ids], axis=1)
        offsets, valid = jnp.arange(tokens.shape[1]), num_valid_drafts(rows)[:, None]
        repeated = jnp.minimum(offsets, valid)
        tokens = jnp.take_along_axis(tokens, repeated, axis=1)
        positions = rows.seq_lens[:, None] + repeated
        writes = (offsets <= valid) & batch.active[:, None]
        pages = view_pages(batch.page_table, positions, writes, pools[0].shape[1])
        hidden, aux_hidden, pools = target(tokens, positions, aux_layer_ids, pools, pages)
        result, logprobs = _choose(target, hidden, drafts, batch, masks, method)
    return result, aux_hidden, pools, logprobs


def _choose(
    target: Target,
    hidden: Float[Array, "batch width hidden"],
    drafts: Drafts,
    batch: RoundBatch,
    masks: UInt32[Array, "batch width words"] | None,
    method: SpeculationMethod,
) -> tuple[VerifyResult, Logprobs | None]:
    """Return the tokens at n+1..n+k+1, the accepted drafts, and logprobs in full rounds."""
    rows, logit_controls, axis = batch.rows, batch.logit_controls, target.vocab_axis
    positions = rows.seq_lens[:, None] + 1 + jnp.arange(hidden.shape[1])
    if batch.biases is not None:
        normed, head = target.normed(hidden), target.lm_head.kernel.get_value()
        chosen = choose_in_kernel(normed, head, positions, rows.options, batch.biases, axis=axis)
        if (rates := method.synthetic_acceptance_rates) is None:
            return accept_equal(chosen, drafts.ids, rows), None
        return accept_at_rates(chosen, chosen[:, :-1] >= 0, drafts.ids, rows, rates), None
    logits = nan_if_nonfinite(target.logits(hidden), axis)
    if logit_controls is None:
        return _decide(method, logits, drafts, rows, axis), None
    controlled = control_logits(
        logits, positions, drafts.ids, rows.options, logit_controls, axis=axis
    )
    controlled = mask_logits(controlled, masks, axis=axis)
    result = _decide(method, controlled, drafts, rows, axis)
    with jax.named_scope("logprobs"):
        processed, tokens = logit_controls.processed_logprobs, result.token_ids
        logprobs = sampled_logprobs(
            logits, controlled, positions, tokens, rows.options, processed, axis
        )
    return result, Logprobs(logprobs)


def _decide(
    method: SpeculationMethod,
    logits: Float[Array, "batch width vocab"],
    drafts: Drafts,
    rows: SlotRows,
    axis: Axis,
) -> VerifyResult:
    """Decide the accepted drafts and the token after them by the method's rule."""
    if drafts.probs is not None:
        block = method.rejection_sample_method == "block"
        return verify_by_rejection(logits, drafts, rows, axis, block=block)
    if method.synthetic_acceptance_rates is not None:
        return verify_synthetic(logits, drafts.ids, rows, method.synthetic_acceptance_rates, axis)
    return verify(logits, drafts.ids, rows, axis)
