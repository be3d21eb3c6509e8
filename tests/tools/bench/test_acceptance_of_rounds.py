"""The share of drafts that the engine's rounds accept is what theory computes from the target's and
the draft's probabilities (arXiv 2408.07978).

The models are listened to while the engine's own round is traced: drafts and choices are drawn
from what their heads say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from small_pair import PROMPTS, small_pair
from test_acceptance_probability import accept_probability

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.programs.compiled import Leaves, PairStructure
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.sampler import probabilities, process_logits
from eagle3_jax.speculative.round import speculative_round
from eagle3_jax.speculative.round_state import gather
from eagle3_jax.speculative.state import DecodeState
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.common.engine_programs import EnginePrograms
from serve.pair.loading import LoadedPair, build_engine

K, LENGTH, TOKENS = 3, 128, 100
SAMPLING = SamplingParams(temperature=10.0, max_tokens=TOKENS, ignore_eos=True)
REQUESTS = [replace(SAMPLING, seed=seed) for seed in range(2 * len(PROMPTS))]
BATCH = 8


class Draft(NamedTuple):
    """One draft that was verified, all before it in its round being accepted: the distributions p
    of the target and q of the draft model [vocab], and whether it was accepted."""

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
        count = len(prompts)
        slots[:count], table[:count] = programs.fill_slots(prompts, sampling, self._eos)
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
    """Record the scores of the model's head from now on, pass by pass."""
    heard: list[Array] = []
    head = model.logits

    def logits(hidden: Array) -> Array:
        heard.append(head(hidden))
        return heard[-1]

    object.__setattr__(model, "logits", logits)
    return heard


@pytest.fixture(scope="module")
def drafts() -> list[Draft]:
    return list(RecordedRounds(small_pair(), K, LENGTH).drafts(2 * PROMPTS, REQUESTS))


def standard_errors_off(drafts: Sequence[Draft]) -> float:
    """Distance of the share accepted from its expectation."""
    expected = np.array([accept_probability(draft.p, draft.q) for draft in drafts])
    error = np.sqrt((expected * (1 - expected)).sum()) / len(drafts)
    return float(abs(np.mean([draft.accepted for draft in drafts]) - expected.mean()) / error)


@pytest.mark.long
def test_the_engines_rounds_accept_as_their_probabilities_say(drafts: list[Draft]) -> None:
    engine = build_engine(
        small_pair(), num_speculative_tokens=K, max_model_len=LENGTH, batch_buckets=(BATCH,)
    )
    drive(engine, [Request(f"{i}", p, REQUESTS[i]) for i, p in enumerate(2 * PROMPTS)])
    stats = engine.stats()
    assert len(drafts) == sum(stats.num_tried_per_pos) > 300
    assert sum(draft.accepted for draft in drafts) == stats.num_accepted_tokens
    assert standard_errors_off(drafts) < 3


@pytest.mark.long
def test_the_proof_notices_other_probabilities(drafts: list[Draft]) -> None:
    assert standard_errors_off([draft._replace(q=draft.p) for draft in drafts]) > 3
