"""Executes a whole compiled program as a machine with a GPU would, with launches on the emulator.

Buffers, slices and the order of steps are read from the serialised executable, which is what such
a machine would load: nothing about them is guessed from HLO.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.launch import LaunchCounts
from eagle3_tools.amdgpu.program.compiled import CompiledProgram
from eagle3_tools.amdgpu.program.executable import KernelLaunch
from eagle3_tools.amdgpu.program.library_product import matrix_flops
from eagle3_tools.amdgpu.program.program_memory import ProgramMemory
from eagle3_tools.amdgpu.program.runtime import EmulatedLauncher, Launcher, Runtime


@dataclass(frozen=True)
class ProgramRun:
    """launches: kernels in order with what they counted. library: products with their flops."""

    results: list[np.ndarray]
    launches: list[tuple[str, LaunchCounts]]
    library: list[tuple[str, int]]

    @property
    def library_share(self) -> float:
        """What the library does of all multiplications and additions in products, 0 to 1.

        Those of kernels are counted in matrix instructions: with the padding of their tiles.
        """
        theirs = sum(flops for _, flops in self.library)
        ours = sum(matrix_flops(counts.instructions) for _, counts in self.launches)
        return theirs / (theirs + ours) if theirs else 0.0


def run_program(
    program: CompiledProgram,
    arguments: Sequence[np.ndarray],
    *,
    poison: int,
    on_launch: Callable[[KernelLaunch, LaunchCounts], Any] | None = None,
    launcher: Launcher | None = None,
    partly_written: frozenset[int] = frozenset(),
    allow_unwritten: bool = False,
) -> ProgramRun:
    """All results of the program, in order; every byte that is no argument's is unwritten before.

    arguments: every leaf that the function was compiled for, also those that jit prunes; donated
    ones stay as they are. poison: see `launch`. launcher: in the place of the emulator.
    partly_written: places of results of which some bytes may be nobody's. allow_unwritten: kernels
    may load what nobody wrote, which is poison. Raises ValueError for
    arguments that don't fit, Fault where the program does what it must not, or wants what nobody
    here can do.
    """
    code = program.executable
    memory = ProgramMemory(code.buffers, poison)
    memory.allow_unwritten = allow_unwritten
    for number, elements in code.constants.items():
        memory.write(memory.addresses[number], elements)
    for array, argument in zip(code.parameters, _kept(program, arguments), strict=True):
        memory.write(memory.addresses[array.buffer], argument)
    runtime = Runtime(memory, launcher or EmulatedLauncher(poison), on_launch)
    runtime.run(code.thunks)
    results = [
        memory.read(
            memory.addresses[a.buffer], a.shape, a.dtype, allow_unwritten=place in partly_written
        )
        for place, a in enumerate(code.results)
    ]
    return ProgramRun(results, runtime.launches, runtime.library)


def _kept(program: CompiledProgram, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arguments that the compiled program has."""
    if len(arguments) != program.arguments:
        raise ValueError(f"expected {program.arguments} arguments, got {len(arguments)}")
    given = [arguments[place] for place in program.kept]
    expected = program.executable.parameters
    for place, argument, array in zip(program.kept, given, expected, strict=True):
        if (argument.shape, argument.dtype) != (array.shape, array.dtype):
            raise ValueError(
                f"argument {place}: expected {array.dtype}{array.shape}, "
                f"got {argument.dtype}{argument.shape}"
            )
    return given
