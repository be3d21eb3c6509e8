"""Rounds of the engine's own program that also return the probabilities behind every draft.

The models are listened to while the round is traced: what their heads say is what drafts and
choices are drawn from, and the round itself is the engine's, line by line.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.programs.compiled import Leaves, PairStructure
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.sampler import probabilities, process_logits
from eagle3_jax.speculative.round import speculative_round
from eagle3_jax.speculative.round_state import gather
from eagle3_jax.speculative.state import DecodeState
from serve.bench.common.engine_programs import EnginePrograms, place
from serve.pair.loading import LoadedPair

BATCH = 8


class Draft(NamedTuple):
    """One draft that was looked at, every draft before it in its round being accepted: the
    distributions p of the target and q of the draft model, and whether it was accepted."""

    p: np.ndarray
    q: np.ndarray
    accepted: bool


class RecordedRounds:
    """Up to eight sequences of a pair at a time, in slots of their own."""

    def __init__(self, pair: LoadedPair, k: int, max_model_len: int) -> None:
        assert pair.draft is not None, "there is nothing to record without a draft"
        config = EngineConfig(k, max_model_len, BATCH, batch_buckets=(BATCH,))
        self._programs = EnginePrograms(pair.target, pair.draft, config)
        self._eos = pair.eos_token_ids
        recorded_round = partial(_recorded_round, self._programs.pair)
        self._round: Any = jax.jit(recorded_round, donate_argnums=(2,))

    def drafts(
        self, prompts: Sequence[list[int]], sampling: Sequence[SamplingParams]
    ) -> Iterator[Draft]:
        """Every draft that was looked at while these prompts, at most eight, were answered."""
        programs, slots = self._programs, np.full(BATCH, BATCH, np.int32)
        table = np.zeros((BATCH, programs.config.pages_per_seq), np.int32)
        for slot, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
            sequence = place(slot, prompt, params, programs.config, self._eos)
            slots[slot], table[slot] = slot, sequence.pages
            programs.prefill_sequence(sequence)
        weights = programs.target_leaves, programs.draft_leaves
        while True:
            programs.state, report, p, q = self._round(*weights, programs.state, slots, table)
            report, p, q = jax.device_get((report, p, q))
            committed, verified = report[:, -2], report[:, -1]
            if not committed.any():
                return
            for row in np.flatnonzero(committed):
                accepted = int(committed[row]) - 1
                for j in range(min(accepted + 1, int(verified[row]))):
                    yield Draft(p[row, j], q[row, j], j < accepted)


def _recorded_round(
    pair: PairStructure,
    target: Leaves,
    draft: Leaves,
    state: DecodeState,
    slot_ids: Array,
    table: Array,
) -> tuple[DecodeState, Array, Array, Array]:
    """The lean round; returns the state, its report, and p and q [batch, k, vocab]."""
    assert pair.draft is not None, "a recorded round drafts"
    rows = gather(state.slots, slot_ids)
    models = pair.target.rebuild(target), pair.draft.rebuild(draft)
    said, proposed = (_listen(model) for model in models)
    state, report, *_ = speculative_round(*models, pair.aux_layer_ids, state, slot_ids, table)
    positions = rows.seq_lens[:, None] + 1 + jnp.arange(len(proposed))
    p, ids = process_logits(said[0][:, :-1], positions, rows.options), models[1].target_ids
    q = process_logits(jnp.concatenate(proposed, axis=1), positions, rows.options, ids)
    p, q = (probabilities(scores, rows.options.temperature) for scores in (p, q))
    return state, report, p, q if ids is None else jnp.zeros_like(p).at[..., ids].set(q)


def _listen(model: Any) -> list[Array]:
    """What the model's head says from now on, pass by pass."""
    heard: list[Array] = []
    head = model.logits

    def logits(hidden: Array) -> Array:
        heard.append(head(hidden))
        return heard[-1]

    object.__setattr__(model, "logits", logits)
    return heard
