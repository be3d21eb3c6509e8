"""The round's two phases as programs of their own, and chains of them on the states of one run.

A chain is dispatched back to back and awaited once, so that its time is the device's. The states
come from a first walk through the same rounds: each phase then sees, round by round, exactly what
it saw there, and routes to the same experts.

A phase in a chain of its own finds its weights in cache, where in a round the other phase's have
just been: for a small pair the two chains add up to less than any round can take. So there is also
a chain in which the two programs take turns.
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
from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.initial_state import initial_state
from eagle3_jax.engine.packing import empty_chunk, pack_chunk
from eagle3_jax.engine.program import ProgramKind
from eagle3_jax.engine.programs import (
    Leaves,
    PairStructure,
    compile_program,
    flatten_model,
    shapes_of,
)
from eagle3_jax.engine.scheduler import ChunkPlan
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling_params import SamplingParams
from eagle3_jax.speculative.drafts import Drafts
from eagle3_jax.speculative.propose import propose
from eagle3_jax.speculative.round import verify_round
from eagle3_jax.speculative.state import DecodeState, SlotRows

ENDLESS = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, seed=0)
"""Greedy, and nothing but the context's end stops it."""


class Batch(NamedTuple):
    """Which slots a program advances, and where their pages are."""

    slot_ids: Array
    page_table: Array


class Recorded(NamedTuple):
    """What one round of the first walk began with, and what its draft proposed."""

    slots: SlotRows
    draft_ids: Array


class PhaseChains:
    """Chains of `rounds` rounds of one pair, k and batch, after the prefill of `prompts`.

    walk: what each round of the recorded walk began with; empty without a draft.
    Raises ValueError when the rounds could reach the end of the context.
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
        self._target, target_structure = flatten_model(target)
        self._draft, draft_structure = flatten_model(draft) if draft else ((), None)
        capture = draft.config.aux_layer_ids if draft else ()
        self._pair = PairStructure(target_structure, draft_structure, capture)
        sequences = [_place(i, list(p), config) for i, p in enumerate(prompts)]
        pages = jnp.asarray([s.pages for s in sequences], jnp.int32)
        self._batch = Batch(jnp.arange(len(prompts)), pages)
        empty = initial_state(target, draft, config, len(capture))
        self._state = self._prefill(empty, sequences, config)
        weights = shapes_of((self._target, self._draft, self._state))
        self._round = compile_program(
            ProgramKind.ROUND, self._pair, *weights, *shapes_of(self._batch)
        )
        self._propose = jax.jit(partial(_propose, self._pair), donate_argnums=(1,))
        self._verify = jax.jit(partial(_verify, self._pair), donate_argnums=(1,))
        self.walk = self._record() if draft else []

    @property
    def program_text(self) -> str:
        """The compiled round, as XLA writes it."""
        return self._round.as_text()  # pyright: ignore[reportFunctionMemberAccess]

    def time_round(self) -> float:
        """Seconds of one whole round."""
        state, report = _copy(self._state), None
        start = time.perf_counter()
        for _ in range(self._rounds):
            state, report, _ = self._round(self._target, self._draft, state, *self._batch)
        return self._seconds_each(start, report)

    def time_phases(self) -> float:
        """Seconds of drafting and verifying as two programs that take turns; needs a draft."""
        state, report = _copy(self._state), None
        start = time.perf_counter()
        for _ in self.walk:
            state, report = self._step_by_step(state)
        return self._seconds_each(start, report)

    def time_propose(self) -> float:
        """Seconds of one round's drafting; needs a draft."""
        pools, draft_ids = _copy(self._state.draft_pools), None
        start = time.perf_counter()
        for recorded in self.walk:
            draft_ids, pools = self._propose(self._draft, pools, recorded.slots, self._batch)
        return self._seconds_each(start, draft_ids)

    def time_verify(self) -> float:
        """Seconds of one round's target pass, decision and commit; needs a draft."""
        state, report = _copy(self._state), None
        start = time.perf_counter()
        for recorded in self.walk:
            state, report = self._verify(self._target, state, recorded.draft_ids, self._batch)
        return self._seconds_each(start, report)

    def _seconds_each(self, start: float, last: Any) -> float:
        jax.block_until_ready(last)
        return (time.perf_counter() - start) / self._rounds

    def _prefill(
        self, state: DecodeState, sequences: list[EngineSequence], config: EngineConfig
    ) -> DecodeState:
        weights = shapes_of((self._target, self._draft, state))
        chunk_shape = shapes_of(empty_chunk(config))
        prefill = compile_program(ProgramKind.PREFILL, self._pair, *weights, chunk_shape)
        drafts = config.num_speculative_tokens if self._draft else 0
        for sequence in sequences:
            length = len(sequence.prefill_ids)
            for start in range(0, length, config.prefill_chunk):
                plan = ChunkPlan(sequence, start, min(length - start, config.prefill_chunk))
                chunk = jax.device_put(pack_chunk(plan, config, drafts))
                state, *_ = prefill(self._target, self._draft, state, chunk)
        return jax.block_until_ready(state)

    def _record(self) -> list[Recorded]:
        """Walks the rounds phase by phase."""
        state, walk = _copy(self._state), []
        for _ in range(self._rounds):
            slots = _copy(state.slots)
            state, (draft_ids, _) = self._step_by_step(state)
            walk.append(Recorded(slots, draft_ids))
        return walk

    def _step_by_step(self, state: DecodeState) -> tuple[DecodeState, tuple[Array, Array]]:
        """One round as two programs; returns what was proposed and what was chosen, too."""
        draft_ids, pools = self._propose(self._draft, state.draft_pools, state.slots, self._batch)
        state = replace(state, draft_pools=pools)
        state, chosen = self._verify(self._target, state, draft_ids, self._batch)
        return state, (draft_ids, chosen)


def _propose(
    pair: PairStructure, leaves: Leaves, pools: KVPools, slots: SlotRows, batch: Batch
) -> tuple[Array, KVPools]:
    assert pair.draft is not None, "only a draft proposes"
    rows: SlotRows = jax.tree.map(lambda x: x[batch.slot_ids], slots)
    k = rows.verified_tokens.shape[1] - 1
    draft = pair.draft.rebuild(leaves)
    drafts, pools = propose(draft, rows, pools, batch.page_table, ~rows.finished, k)
    return drafts.ids, pools


def _verify(
    pair: PairStructure, leaves: Leaves, state: DecodeState, draft_ids: Array, batch: Batch
) -> tuple[DecodeState, Array]:
    target = pair.target.rebuild(leaves)
    drafts = Drafts(draft_ids)
    state, report, _ = verify_round(target, pair.aux_layer_ids, state, *batch, drafts)
    return state, report


def _place(index: int, prompt: list[int], config: EngineConfig) -> EngineSequence:
    """A sequence in its slot with all the pages it could ever need."""
    request = Request(f"{index}", prompt, ENDLESS)
    sequence = EngineSequence.of(request, (), config.max_model_len, None)
    sequence.slot, count = index, config.pages_per_seq
    sequence.pages = list(range(1 + index * count, 1 + (index + 1) * count))
    return sequence


def _copy(tree: Any) -> Any:
    """Arrays of their own, for a program to consume."""
    return jax.block_until_ready(jax.tree.map(jnp.copy, tree))
