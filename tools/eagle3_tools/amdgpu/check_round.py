"""Emulate prefill and rounds of the small pair's engine, and compare with the engine on the CPU."""

import time
from collections.abc import Sequence

import numpy as np

from eagle3_tools.amdgpu.check import POISON, Checked, code_of
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.program.compiled import CompiledProgram, compile_source
from eagle3_tools.amdgpu.program.run import ProgramRun, run_program
from eagle3_tools.amdgpu.rounds.round_program import Run, engine_on, pair_programs
from eagle3_tools.amdgpu.rounds.small_pair import small_pair
from eagle3_tools.amdgpu.rounds.transcript import (
    cpu_transcript,
    largest_state_error,
    play,
    token_problems,
)

STATE_TOLERANCE = {"bf16": 2.5e-2, "mxfp4": 8e-2}
"""Several roundings to bfloat16 (2^-8), because XLA fuses differently for the GPU; MXFP4 and FP8
rows then take the next code. Swapped heads or experts give 4e-2 and more.
"""


def round_name(format: str, rounds: int) -> str:
    """Return the name in reports."""
    return f"prefill and {rounds} rounds of the {format} pair"


def check_round(format: str, arch: str, rounds: int) -> Checked:
    """Compare tokens and accept counts with the CPU engine's."""
    begin, pair, total = time.monotonic(), small_pair(format), ProgramRun([], [], [])

    def emulated(program: CompiledProgram) -> Run:
        def run(leaves: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            done = run_program(program, leaves, poison=POISON[0], allow_unwritten=True)
            total.launches.extend(done.launches)
            total.library.extend(done.library)
            return done.results

        return run

    programs = {one: compile_source(one.source) for one in pair_programs(pair, arch)}
    found = code_of(round_name(format, rounds), arch, *programs.values())
    expected = cpu_transcript(pair, rounds)
    try:
        runs = {one: emulated(program) for one, program in programs.items()}
        played = play(engine_on(pair, arch, runs), rounds)
    except Fault as fault:
        return found.failed(str(fault)).ran(total, begin)
    if problems := token_problems(expected, played):  # The states belong to different tokens.
        return found.failed(*problems).ran(total, begin)
    error, most = largest_state_error(expected, played), STATE_TOLERANCE[format]
    if error > most:
        found = found.failed(f"{error:.2g} from the CPU's state")
    return found.ran(total, begin, reference=error, allowed=(most, float("nan")))
