"""Reading and updating of the decode state by one round, for chains and trees."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.cache import KVPool
from eagle3_jax.sampling.rows import lean_rows
from eagle3_jax.speculative.logit_control_rows import (
    LogitControls,
    TokenBiases,
    commit_tokens,
    enabled_biases,
)
from eagle3_jax.speculative.method import Variant, Widths
from eagle3_jax.speculative.state import DecodeState, SlotRows, narrow, widen
from eagle3_jax.speculative.verify import VerifyResult, num_valid_drafts

LOOKED_UP = 256
"""Unit of looked-up drafts in a report, above the number of verified drafts."""


class RoundBatch(NamedTuple):
    """The sequences that a round advances, if `active`.

    `whole` has their rows as the state keeps them, `rows` as the round reads them. Full rounds have
    `logit_controls`, argmax rounds `biases`. Verification with lookup has `looked_up`, the
    number of each row's last drafts that are copies of earlier tokens.
    """

    slot_ids: Int[Array, " batch"]
    page_table: Int[Array, "batch pages_per_seq"]
    whole: SlotRows
    rows: SlotRows
    active: Bool[Array, " batch"]
    logit_controls: LogitControls | None
    biases: TokenBiases | None
    looked_up: Int[Array, " batch"] | None = None


def read_batch(
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    variant: Variant,
    widths: Widths | None = None,
    *,
    limits: Int[Array, " batch"] | None = None,
    resumes: bool = False,
) -> RoundBatch:
    """Gather the rows of the sequences in `slot_ids`, which want at most `limits` drafts.

    `resumes` activates paused rows.
    """
    whole: SlotRows = gather(state.slots, slot_ids)
    paused = whole.last_tokens[:, 0] == whole.pause_id
    rows = narrow(whole, widths) if widths else whole
    if limits is not None:
        rows = replace(rows, num_drafts=jnp.minimum(rows.num_drafts, limits))
    if variant is not Variant.FULL:
        rows = replace(rows, options=lean_rows(rows.options))
    return RoundBatch(
        slot_ids,
        page_table,
        whole,
        rows,
        ~whole.finished if resumes else ~(whole.finished | paused),
        gather(state.logit_controls, slot_ids) if variant is Variant.FULL else None,
        gather(enabled_biases(state.logit_controls), slot_ids)
        if variant is Variant.ARGMAX
        else None,
    )


def gather(slots: Any, slot_ids: Int[Array, " batch"]) -> Any:
    return jax.tree.map(lambda x: x.at[slot_ids].get(mode="promise_in_bounds"), slots)


def commit_batch(
    state: DecodeState,
    batch: RoundBatch,
    result: VerifyResult,
    aux_hidden: Float[Array, "batch width aux"],
    target_pools: tuple[KVPool, ...],
) -> tuple[DecodeState, Int[Array, "batch report"]]:
    """Return the state after the round and the report that the host reads.

    A report row is [tokens, number committed (0: the row was finished), drafts verified + LOOKED_UP
    times those looked up]. Lengths grow by num_accepted + 1; inactive rows are unchanged.
    """
    rows = batch.whole
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
        active = batch.active.reshape(-1, *[1] * (old.ndim - 1))
        changed = jnp.where(active, changed, old)
        return slot.at[batch.slot_ids].set(changed, mode="promise_in_bounds")

    with jax.named_scope("commit"):
        slots = jax.tree.map(write, state.slots, rows, new)
    committed = jnp.where(batch.active, result.num_accepted + 1, 0)
    logit_controls = state.logit_controls
    if batch.logit_controls is not None:
        logit_controls = commit_tokens(logit_controls, batch.slot_ids, result.token_ids, committed)
    verified = jnp.where(batch.active, num_valid_drafts(batch.rows), 0)
    if batch.looked_up is not None:
        verified += LOOKED_UP * batch.looked_up
    report = jnp.concatenate([result.token_ids, committed[:, None], verified[:, None]], axis=1)
    after = replace(state, target_pools=target_pools, slots=slots, logit_controls=logit_controls)
    return after, report
