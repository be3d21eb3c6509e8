"""Time the phases of a round (propose, verify) as separate programs.

Programs are dispatched in a chain and awaited once, so that the time is the device's. A first walk
through the same rounds records their states. Each phase then gets the same inputs round by round,
and routes to the same experts.

A phase in its own chain finds its weights in cache, whereas in a round the other phase has evicted
them. For a small pair the two chains therefore take less than any round can. A further chain
alternates the two programs.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from eagle3_jax.cache import KVPools
from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.programs.compiled import Leaves, PairStructure
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.propose import Drafts, propose
from eagle3_jax.speculative.round import verify_round
from eagle3_jax.speculative.round_state import RoundBatch, gather
from eagle3_jax.speculative.state import DecodeState, SlotRows
from eagle3_tools.bench.common.engine_programs import EnginePrograms

ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, seed=0)
"""Greedy sampling that only the end of the context stops."""


class Recorded(NamedTuple):
    """Slots at the beginning of a round of the recorded walk, and its draft tokens."""

    slots: SlotRows
    draft_ids: Array


class PhaseChains:
    """Chains of `rounds` rounds of one pair, k and batch, after the prefill of `prompts`.

    `walk` has the recorded rounds; it is empty without a draft. Raises ValueError if the rounds
    could reach the end of the context.
    """

    def __init__(
        self,
        target: Target,
        draft: Eagle3Draft | None,
        config: EngineConfig,
        prompts: Sequence[Sequence[int]],
        rounds: int,
    ) -> None:
        if max(map(len, prompts)) + rounds * config.width + 1 >= config.max_model_len:
            raise ValueError(
                f"{rounds} rounds of {config.width} tokens after prompts of up to "
                f"{max(map(len, prompts))} do not fit max_model_len={config.max_model_len}"
            )
        self._rounds = rounds
        self._programs = programs = EnginePrograms(target, draft, config)
        self._batch = programs.fill_slots(prompts, [ENDLESS] * len(prompts))
        jax.block_until_ready(programs.state)
        self._round = programs.compiled(ProgramKind.ROUND, *self._batch)
        self._propose = jax.jit(partial(_propose, programs.pair), donate_argnums=(1,))
        self._verify = jax.jit(partial(_verify, programs.pair), donate_argnums=(1,))
        self.walk = self._record() if draft else []

    @property
    def program_text(self) -> str:
        return self._round.as_text()  # pyright: ignore[reportFunctionMemberAccess]

    def time_round(self) -> float:
        weights = self._programs.target_leaves, self._programs.draft_leaves
        state, report = _copy(self._programs.state), None
        start = time.perf_counter()
        for _ in range(self._rounds):
            state, report, _ = self._round(*weights, state, *self._batch)
        return self._seconds_each(start, report)

    def time_phases(self) -> float:
        """Return the seconds of a round as two alternating programs; needs a draft."""
        state, report = _copy(self._programs.state), None
        start = time.perf_counter()
        for _ in self.walk:
            state, report = self._step_by_step(state)
        return self._seconds_each(start, report)

    def time_propose(self) -> float:
        """Return the seconds of one round's propose; needs a draft."""
        state, draft_ids = _copy(self._programs.state), None
        start = time.perf_counter()
        for recorded in self.walk:
            state, draft_ids = self._draft(replace(state, slots=recorded.slots))
        return self._seconds_each(start, draft_ids)

    def time_verify(self) -> float:
        """Return the seconds of one round's target pass, decision and commit; needs a draft."""
        state, report = _copy(self._programs.state), None
        start = time.perf_counter()
        for recorded in self.walk:
            state, report = self._decide(state, recorded.draft_ids)
        return self._seconds_each(start, report)

    def _seconds_each(self, start: float, last: Any) -> float:
        jax.block_until_ready(last)
        return (time.perf_counter() - start) / self._rounds

    def _record(self) -> list[Recorded]:
        state, walk = _copy(self._programs.state), []
        for _ in range(self._rounds):
            slots = _copy(state.slots)
            state, (draft_ids, _) = self._step_by_step(state)
            walk.append(Recorded(slots, draft_ids))
        return walk

    def _step_by_step(self, state: DecodeState) -> tuple[DecodeState, tuple[Array, Array]]:
        """Run one round as two programs; return the state, the draft ids and the report."""
        state, draft_ids = self._draft(state)
        state, report = self._decide(state, draft_ids)
        return state, (draft_ids, report)

    def _draft(self, state: DecodeState) -> tuple[DecodeState, Array]:
        leaves = self._programs.draft_leaves
        draft_ids, pools = self._propose(leaves, state.draft_pools, state.slots, *self._batch)
        return replace(state, draft_pools=pools), draft_ids

    def _decide(self, state: DecodeState, draft_ids: Array) -> tuple[DecodeState, Array]:
        return self._verify(self._programs.target_leaves, state, draft_ids, *self._batch)


def _propose(
    pair: PairStructure,
    leaves: Leaves,
    pools: KVPools,
    slots: SlotRows,
    slot_ids: Array,
    page_table: Array,
) -> tuple[Array, KVPools]:
    assert pair.draft is not None, "only a draft proposes"
    rows: SlotRows = gather(slots, slot_ids)
    k = rows.verified_tokens.shape[1] - 1
    draft = pair.draft.rebuild(leaves)
    batch = RoundBatch(slot_ids, page_table, rows, rows, ~rows.finished, None, None)
    drafts, pools = propose(draft, batch, pools, k)
    return drafts.ids, pools


def _verify(
    pair: PairStructure,
    leaves: Leaves,
    state: DecodeState,
    draft_ids: Array,
    slot_ids: Array,
    page_table: Array,
) -> tuple[DecodeState, Array]:
    batch = slot_ids, page_table, Drafts(draft_ids)
    target = pair.target.rebuild(leaves)
    state, report, _ = verify_round(target, pair.aux_layer_ids, state, *batch)
    return state, report


def _copy(tree: Any) -> Any:
    """Copy arrays, so that a program may consume (donate) the copies."""
    return jax.block_until_ready(jax.tree.map(jnp.copy, tree))
