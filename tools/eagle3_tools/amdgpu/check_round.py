"""Prefill and rounds of the small pair's engine, executed, against the engine on this CPU."""

import time
from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.check import (
    POISON,
    Checked,
    beyond_problems,
    code_problems,
    kernels_of,
    own_kernels,
    unsettled,
)
from eagle3_tools.amdgpu.emulator.launch import LaunchCounts
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.program.compiled import CompiledProgram, compile_source
from eagle3_tools.amdgpu.program.library_product import matrix_flops
from eagle3_tools.amdgpu.program.run import run_program
from eagle3_tools.amdgpu.rounds.round_oracle import Transcript, compare, cpu_transcript, play
from eagle3_tools.amdgpu.rounds.round_program import PREFILL, ROUND, PairKey, Run, engine_on, source
from eagle3_tools.amdgpu.rounds.round_state import state_errors
from eagle3_tools.amdgpu.rounds.small_pair import small_pair

STATE_TOLERANCE = {"bf16": 2.5e-2, "mxfp4": 8e-2}
"""Some roundings to bfloat16, 2^-8, in a row, as XLA fuses otherwise there; MXFP4's and FP8's rows
take the next code. Exchanged heads or experts are 4e-2 and more."""


class Counted:
    """Runs compiled programs and keeps what their launches counted."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, LaunchCounts]] = []
        self.library = 0

    def run(self, program: CompiledProgram) -> Run:
        """A function of a program's leaves to its results."""

        def run(leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            done = run_program(program, leaves, poison=POISON[0], allow_unwritten=True)
            self.launches += done.launches
            self.library += sum(flops for _, flops in done.library)
            return done.results

        return run

    @property
    def library_share(self) -> float:
        """What the library does of all products."""
        ours = sum(matrix_flops(counts.instructions) for _, counts in self.launches)
        return self.library / max(1, self.library + ours)


def round_name(format: str, rounds: int) -> str:
    """How it is listed."""
    return f"prefill and {rounds} rounds of the {format} pair"


def check_round(job: tuple[str, str, int]) -> Checked:
    """(format of the pair, GPU, rounds): tokens and accept counts are the CPU engine's, or ties."""
    format, arch, rounds = job
    name, begin = round_name(format, rounds), time.monotonic()
    pair, counted = small_pair(format), Counted()
    programs = {key: compile_source(source(PairKey(format, arch, key))) for key in (PREFILL, ROUND)}
    kernels = [kernel for program in programs.values() for kernel in kernels_of(program)]
    own = frozenset[str]().union(*map(own_kernels, programs.values()))
    problems = [problem for kernel in kernels for problem in code_problems(kernel, own)]
    there = frozenset(i.name for kernel in kernels for i in kernel.code.values())
    expected = cpu_transcript(pair, rounds)
    try:
        runs = {key: counted.run(program) for key, program in programs.items()}
        found = play(engine_on(pair, arch, runs), rounds)
    except Fault as fault:
        return Checked(name, arch, (*problems, str(fault)), tuple(counted.launches), there)
    problems += beyond_problems(counted.launches, own)
    problems += [v.reason for v in compare(pair, expected, found) if v.kind == "different"]
    error = _state_error(expected, found)
    if error > STATE_TOLERANCE[format]:
        problems.append(f"{error:.2g} from the CPU's state")
    return Checked(
        name,
        arch,
        tuple(problems),
        tuple(counted.launches),
        there,
        reference=error,
        allowed=(error if isnan(error) else STATE_TOLERANCE[format], float("nan")),
        library_share=counted.library_share,
        seconds=time.monotonic() - begin,
        unsettled=unsettled(kernels, own),
    )


def _state_error(expected: Transcript, found: Transcript) -> float:
    """Of KV rows and features before each round and behind the last."""
    if not np.array_equal(expected.reports, found.reports):
        return float("nan")  # Behind a tie the states are those of other tokens.
    pairs: Any = zip(expected.held, found.held, strict=True)
    return max(max(state_errors(ours, theirs).values()) for ours, theirs in pairs)
