"""Phases, prediction and engine of a round."""

import jax
import pytest
from simulated_device import SimulatedRunner
from small_pair import PROMPTS, TARGET, small_pair

from eagle3_jax import generate
from eagle3_jax.engine import EngineConfig
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.accept_length import AcceptCounts, AcceptRow
from eagle3_tools.bench.cpu import rounds
from eagle3_tools.bench.cpu.phases import PhaseChains
from eagle3_tools.bench.cpu.rounds import compare_rounds

CONFIG = EngineConfig(
    num_speculative_tokens=2, max_model_len=64, max_num_seqs=2, batch_buckets=(2,)
)
COUNTS = AcceptCounts(10, 30, 15, (8, 5, 2))
ACCEPT = AcceptRow("overall", 5, 100, COUNTS, 2.5, (0.8, 0.5, 0.2), 0, COUNTS.histogram, 0.9)


def test_the_walk_phase_by_phase_is_the_generation_itself() -> None:
    pair, prompts = small_pair(), PROMPTS[:2]
    chains = PhaseChains(pair.target, pair.draft, CONFIG, prompts, rounds=6)
    greedy = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    for row, answer in enumerate(generate(pair.target, None, prompts, greedy)):
        walked: list[int] = []
        for recorded in chains.walk:
            slots = jax.device_get(recorded.slots)
            accepted = slots.num_accepted[row]
            walked += slots.verified_tokens[row, : accepted + 1].tolist()
        assert len(walked) >= len(chains.walk)
        assert walked == answer.token_ids[: len(walked)]


def test_rounds_that_would_run_out_of_context_are_refused() -> None:
    pair = small_pair()
    config = EngineConfig(num_speculative_tokens=3, max_model_len=64, max_num_seqs=1)
    with pytest.raises(ValueError, match="do not fit max_model_len=64"):
        PhaseChains(pair.target, pair.draft, config, PROMPTS[:1], rounds=20)


def test_everything_is_timed_in_both_the_chains_and_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Engines are simulated, the chains have the programs of the walk."""
    monkeypatch.setattr("simulated_device.VOCAB", TARGET.vocab_size)
    monkeypatch.setattr("eagle3_jax.engine.engine.Runner", SimulatedRunner)
    monkeypatch.setattr(rounds, "CONTEXT", CONFIG.max_model_len)
    batch, accept = PROMPTS[:2], {CONFIG.num_speculative_tokens: ACCEPT}
    result = compare_rounds(small_pair(), batch, PROMPTS, accept, repetitions=2, rounds=3)[0]
    times = result.times
    assert times.phases and times.propose and times.verify
    spreads = (times.phases, times.propose, times.verify)
    parts = (times.fused, times.engine, *spreads, result.plain.engine)
    assert all(part.count == 2 and part.best > 0 for part in parts)
    assert result.batch == 2
    phases, alone = times.phases.median, times.propose.median + times.verify.median
    assert result.prediction_share == phases / times.engine.median
    assert result.warm_prediction_share == alone / times.engine.median
    assert result.break_even == phases / result.plain.fused.median
    answers = result.answers
    assert answers.prompts == len(PROMPTS)
    rates = answers.tokens_per_s, answers.plain_tokens_per_s, answers.speedup
    assert all(rate.count == 2 and rate.best >= rate.worst > 0 for rate in rates)
