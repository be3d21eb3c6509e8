"""One round of speculative decoding, state in, state out: draft, verify, decide, commit.

k is unrolled, shapes are static and nothing on the device branches on data. Plain decoding is the
same round with k = 0. A batch with a grammar runs the two halves as two programs, because the masks
of the rows behind a draft can't be known before the draft is.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from eagle3_jax.cache import KVPool, view_pages
from eagle3_jax.collectives import Axis
from eagle3_jax.logprobs import Logprobs, sampled_logprobs
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling import spoil_infinite
from eagle3_jax.speculative.controls import (
    TokenBiases,
    TokenControls,
    commit_tokens,
    control_logits,
    enabled_biases,
)
from eagle3_jax.speculative.drafts import Drafts
from eagle3_jax.speculative.head_choice import choose_in_kernel
from eagle3_jax.speculative.method import COUPLED, SpeculationMethod
from eagle3_jax.speculative.propose import propose
from eagle3_jax.speculative.rejection import verify_by_rejection
from eagle3_jax.speculative.state import DecodeState, SlotRows, narrow, widen
from eagle3_jax.speculative.synthetic import accept_at_rates, verify_synthetic
from eagle3_jax.speculative.verify import VerifyResult, accept_equal, num_valid_drafts, verify
from eagle3_jax.speculative.widths import Widths
from eagle3_jax.token_mask import mask_logits


def speculative_round(
    target: Target,
    draft: Eagle3Draft | None,
    aux_layer_ids: tuple[int, ...],
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    *,
    full: bool = False,
    argmax: bool = False,
    method: SpeculationMethod = COUPLED,
    widths: Widths | None = None,
) -> tuple[DecodeState, Int[Array, "batch report"], Logprobs | None]:
    """Advances the sequences in `slot_ids` by one verify of width k+1: both halves in one program.

    full: reads and keeps the state's controls and computes logprobs, which a batch without such
    options need not pay for. argmax: the target's tokens are chosen in the head's kernel and no
    logits are written: of the options only temperature, min-p, biases and few stop ids before
    min_len count (eagle3_jax.speculative.head_choice).
    method: how drafts are drawn and accepted; static.
    widths: of an engine that chooses k; else the state (verified_tokens) says it all.

    Returns the new state, the report the host reads: [k+1 tokens, number committed (0: the row was
    finished), drafts verified] a row, and the logprobs of these tokens.
    """
    static: Any = {"full": full, "argmax": argmax, "method": method, "widths": widths}
    state, drafts = propose_round(
        draft, state, slot_ids, page_table, **static, target_axis=target.vocab_axis
    )
    return verify_round(target, aux_layer_ids, state, slot_ids, page_table, drafts, **static)


def propose_round(
    draft: Eagle3Draft | None,
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    masks: UInt32[Array, "batch 1 words"] | None = None,
    *,
    full: bool = False,
    argmax: bool = False,
    method: SpeculationMethod = COUPLED,
    widths: Widths | None = None,
    target_axis: Axis = None,
) -> tuple[DecodeState, Drafts]:
    """The draft's half of a round: new draft KV and the drafts; without a draft zeros.

    masks: of the first draft; what may come behind it is known only once it is. target_axis: over
    which laws of drafts are split, as the target's vocabulary is.
    """
    rows: SlotRows = gather(state.slots, slot_ids)
    width = widths.drafts + 1 if widths else rows.verified_tokens.shape[1]
    if widths:
        rows = narrow(rows, widths)
    if draft is None:
        return state, Drafts(jnp.zeros((slot_ids.shape[0], width - 1), jnp.int32))
    controls: TokenControls | None = gather(state.controls, slot_ids) if full else None
    with jax.named_scope("propose"):
        drafts, pools = propose(
            draft,
            rows,
            state.draft_pools,
            page_table,
            ~rows.finished,
            width - 1,
            controls,
            masks,
            with_law=method.needs_law,
            target_axis=target_axis,
            biases=gather(enabled_biases(state.controls), slot_ids) if argmax else None,
        )
    return replace(state, draft_pools=pools), drafts


def verify_round(
    target: Target,
    aux_layer_ids: tuple[int, ...],
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    drafts: Drafts,
    masks: UInt32[Array, "batch width words"] | None = None,
    *,
    full: bool = False,
    argmax: bool = False,
    method: SpeculationMethod = COUPLED,
    widths: Widths | None = None,
) -> tuple[DecodeState, Int[Array, "batch report"], Logprobs | None]:
    """The target's half of a round: verify, decide, commit.

    masks: which tokens may come at each row's position, a bit each; see eagle3_jax.token_mask; only
    with full.
    """
    whole: SlotRows = gather(state.slots, slot_ids)
    rows = narrow(whole, widths) if widths else whole
    controls: TokenControls | None = gather(state.controls, slot_ids) if full else None
    active = ~rows.finished
    with jax.named_scope("verify"):
        result, aux_hidden, target_pools, logprobs = _target_rows(
            target,
            aux_layer_ids,
            drafts,
            rows,
            state.target_pools,
            page_table,
            active,
            controls,
            masks,
            method,
            gather(enabled_biases(state.controls), slot_ids) if argmax else None,
        )
    with jax.named_scope("commit"):
        slots = commit(state.slots, slot_ids, whole, result, aux_hidden)
    committed = jnp.where(active, result.num_accepted + 1, 0)
    all_controls = state.controls
    if full:
        all_controls = commit_tokens(all_controls, slot_ids, result.token_ids, committed)
    verified = jnp.where(active, num_valid_drafts(rows), 0)
    report = jnp.concatenate([result.token_ids, committed[:, None], verified[:, None]], axis=1)
    return DecodeState(target_pools, state.draft_pools, slots, all_controls), report, logprobs


def gather(slots: Any, slot_ids: Int[Array, " batch"]) -> Any:
    """The rows of one batch."""
    return jax.tree.map(lambda x: x.at[slot_ids].get(mode="promise_in_bounds"), slots)


def _target_rows(
    target: Target,
    aux_layer_ids: tuple[int, ...],
    drafts: Drafts,
    rows: SlotRows,
    pools: tuple[KVPool, ...],
    page_table: Int[Array, "batch pages_per_seq"],
    active: Bool[Array, " batch"],
    controls: TokenControls | None = None,
    masks: UInt32[Array, "batch width words"] | None = None,
    method: SpeculationMethod = COUPLED,
    biases: TokenBiases | None = None,
) -> tuple[VerifyResult, Array, tuple[KVPool, ...], Logprobs | None]:
    """Runs [last token, d1..dk] through the target at positions n..n+k and decides.

    Rows past the valid drafts repeat the last valid position and write to scratch. Without controls
    there are no logprobs. With biases no logits are written.
    """
    last = jnp.take_along_axis(rows.verified_tokens, rows.num_accepted[:, None], axis=1)
    tokens = jnp.concatenate([last, drafts.ids], axis=1)
    offsets, valid = jnp.arange(tokens.shape[1]), num_valid_drafts(rows)[:, None]
    positions = rows.seq_lens[:, None] + jnp.minimum(offsets, valid)
    writes = (offsets <= valid) & active[:, None]
    pages = view_pages(page_table, positions, writes, pools[0].shape[1])
    hidden, aux_hidden, pools = target(tokens, positions, aux_layer_ids, pools, pages)
    places = rows.seq_lens[:, None] + 1 + offsets
    axis = target.vocab_axis
    if biases is not None:
        normed, head = target.normed(hidden), target.lm_head.kernel.get_value()
        chosen = choose_in_kernel(normed, head, places, rows.options, biases, axis=axis)
        return _accept(method, chosen, drafts.ids, rows), aux_hidden, pools, None
    logits = spoil_infinite(target.logits(hidden), axis)
    if controls is None:
        return _decide(method, logits, drafts, rows, axis), aux_hidden, pools, None
    controlled = control_logits(logits, places, drafts.ids, rows.options, controls, axis=axis)
    if masks is not None:
        controlled = mask_logits(controlled, masks, axis=axis)
    result = _decide(method, controlled, drafts, rows, axis)
    with jax.named_scope("logprobs"):
        logprobs = sampled_logprobs(
            logits,
            controlled,
            places,
            result.token_ids,
            rows.options,
            controls.processed_logprobs,
            axis,
        )
    return result, aux_hidden, pools, Logprobs(logprobs)


def _decide(
    method: SpeculationMethod,
    logits: Float[Array, "batch width vocab"],
    drafts: Drafts,
    rows: SlotRows,
    axis: Axis,
) -> VerifyResult:
    """Which drafts are accepted, and the token behind them."""
    if drafts.law is not None:
        return verify_by_rejection(logits, drafts, rows, axis)
    if method.synthetic_acceptance_rates is not None:
        return verify_synthetic(logits, drafts.ids, rows, method.synthetic_acceptance_rates, axis)
    return verify(logits, drafts.ids, rows, axis)


def _accept(
    method: SpeculationMethod,
    chosen: Int[Array, "batch width"],
    draft_ids: Int[Array, "batch k"],
    rows: SlotRows,
) -> VerifyResult:
    """As `_decide`, from the target's choices alone."""
    if method.synthetic_acceptance_rates is None:
        return accept_equal(chosen, draft_ids, rows)
    rates, possible = method.synthetic_acceptance_rates, chosen[:, :-1] >= 0
    return accept_at_rates(chosen, possible, draft_ids, rows, rates)


def commit(
    slots: SlotRows,
    slot_ids: Int[Array, " batch"],
    rows: SlotRows,
    result: VerifyResult,
    aux_hidden: Array,
) -> SlotRows:
    """Moves lengths by num_accepted + 1; a finished row keeps what it had."""
    width = rows.verified_tokens.shape[1]
    new = replace(
        rows,
        seq_lens=rows.seq_lens + result.num_accepted + 1,
        verified_tokens=widen(result.token_ids, width),
        num_accepted=result.num_accepted,
        aux_hidden=widen(aux_hidden, width),
        finished=result.finished,
    )

    def write(slot: Array, old: Array, changed: Array) -> Array:
        if changed is old:
            return slot
        keep = rows.finished.reshape(-1, *[1] * (old.ndim - 1))
        return slot.at[slot_ids].set(jnp.where(keep, old, changed), mode="promise_in_bounds")

    return jax.tree.map(write, slots, rows, new)
