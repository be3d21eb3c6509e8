"""Engines on several devices: options, and tokens that kernels choose."""

from math import prod
from typing import Any

import pytest
from driving import drive, sizes
from setups import Setup, pair_on_devices, pair_on_replicas
from sweeps import sweep
from tiny import VOCAB
from wide_pair import wide_target

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.aot.hlo import parse_module

K = 3


@pytest.mark.parametrize("replicas", sweep([1, 4], []))
def test_options_that_look_at_tokens_mean_the_same_on_devices(replicas: int) -> None:
    kinds: list[dict[str, Any]] = [
        {"logit_bias": {3: 4.0, 90: 4.0}, "bad_words_ids": [[5], [90, 3]]},
        {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"allowed_token_ids": list(range(1, 96, 3)), "min_tokens": 6, "stop_token_ids": [7, 40]},
        {"logprobs": 5, "prompt_logprobs": 3, "top_p": 0.7, "top_k": 9, "min_p": 0.01},
    ]
    requests = [
        Request(f"{i}", [i + 1, 2 * i, 60], SamplingParams(seed=i, max_tokens=16, **kind))
        for i, kind in enumerate(kinds)
    ]
    setup = Setup(4, True, "grouped", "float32", True)
    pair = pair_on_devices(setup) if replicas == 1 else pair_on_replicas(replicas, 1, "grouped")
    split = drive(Engine(*pair, sizes(K, data_parallel_size=replicas)), requests)
    whole = drive(Engine(wide_target(), None, sizes(0)), requests)
    assert {n: a.token_ids for n, a in split.items()} == {n: a.token_ids for n, a in whole.items()}
    ours, theirs = ([e for o in run["3"].outputs for e in o.logprobs] for run in (split, whole))
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        for token in one:
            assert one[token].rank == other[token].rank
            assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)


K = 3
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 0.8, "logit_bias": {5: 4.0, 60: 3.5, 2: -100.0}, "min_tokens": 6},
]
REQUESTS = [
    Request(f"{i}", [7 * i + 1, 3, 90 - i], SamplingParams(seed=i, max_tokens=24, **chosen))
    for i, chosen in enumerate(OPTIONS)
]
SETUP = Setup(4, False, "latent", "float32", True)


def test_devices_choose_the_token_that_one_samples_and_tell_each_other_pairs_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the tie rule; none of these requests has a tie."""
    alone = sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,))
    plain = drive(Engine(wide_target(), None, alone), REQUESTS)
    monkeypatch.setattr("eagle3_jax.engine.programs.program.chooses_in_kernel", lambda: True)
    engine = Engine(*pair_on_devices(SETUP), sizes(K))
    answers = drive(engine, REQUESTS)
    for name, answer in answers.items():
        assert answer.token_ids == plain[name].token_ids
    assert engine.stats().num_accepted_tokens > 0
    program: Any = engine._runner.executor.compiled[Program(ProgramKind.ARGMAX_ROUND, 4)]
    gathered = [
        prod(shape)
        for instruction, _ in parse_module(program.as_text()).executed()
        if instruction.opcode.startswith("all-gather")
        for _, shape in instruction.arrays
    ]
    # A pair and, for min-p, the best logit of each of 16 rows: of 4 devices each.
    assert gathered and max(gathered) <= 16 * 2 * SETUP.devices < 16 * VOCAB
