"""Tokens chosen without written logits where each device has a part of the vocabulary."""

from math import prod
from typing import Any

import pytest
from driving import drive, sizes
from setups import Setup, pair_on_devices
from tiny import VOCAB
from wide_pair import wide_target

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.aot.hlo import parse_module

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
