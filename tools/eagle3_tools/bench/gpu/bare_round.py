"""The round's program, run again and again without a scheduler."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.programs.program import ProgramKind, has_argmax
from eagle3_tools.bench.common.engine_programs import EnginePrograms, place
from eagle3_tools.bench.cpu.phases import ENDLESS
from eagle3_tools.bench.gpu.launched import Launched, launched_by
from serve.pair.loading import LoadedPair

ROUNDS = 32


@dataclass(frozen=True)
class BareRound:
    """us: of a round of the batch, dispatched behind the one before. kernels: a round's, 0 on a
    CPU. launched: by `rounds` of them."""

    batch: int
    rounds: int
    us: float
    kernels: float
    launched: Launched

    @property
    def holds(self) -> bool:
        """Whether a round launches its program, once, and nothing else."""
        return self.launched.programs == self.rounds and not self.launched.foreign


def bare_round(
    pair: LoadedPair, config: EngineConfig, prompts: Sequence[Sequence[int]], rounds: int = ROUNDS
) -> BareRound:
    """Prefills the prompts, one a slot, and runs the rounds that decide them."""
    programs = EnginePrograms(pair.target, pair.draft, config)
    sequences = [place(i, list(p), ENDLESS, config) for i, p in enumerate(prompts)]
    for sequence in sequences:
        programs.prefill_sequence(sequence)
    pages = jnp.asarray([sequence.pages for sequence in sequences], jnp.int32)
    batch = jnp.arange(len(sequences)), pages
    kind = ProgramKind.ARGMAX_ROUND if has_argmax(config) else ProgramKind.ROUND
    program = programs.compiled(kind, *batch)
    weights, state = (programs.target_leaves, programs.draft_leaves), programs.state

    def run() -> None:
        nonlocal state
        report: Any = None
        for _ in range(rounds):
            state, report, _ = program(*weights, state, *batch)
        jax.block_until_ready(report)

    run()
    start = time.perf_counter()
    run()
    us = (time.perf_counter() - start) / rounds * 1e6
    launched = launched_by(run)
    kernels = sum(launched.kernels.values()) / rounds
    return BareRound(len(sequences), rounds, us, kernels, launched)
