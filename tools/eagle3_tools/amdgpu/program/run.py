"""Execute a whole compiled program as a machine with a GPU would, with emulated launches.

Buffers, slices and the order of steps come from the executable that such a machine would load.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3_tools.amdgpu.emulator.launch import LaunchCounts
from eagle3_tools.amdgpu.program.compiled import CompiledProgram
from eagle3_tools.amdgpu.program.library_product import matrix_flops
from eagle3_tools.amdgpu.program.program_memory import ProgramMemory
from eagle3_tools.amdgpu.program.runtime import EmulatedLauncher, Launcher, Runtime


@dataclass(frozen=True)
class ProgramRun:
    """Results, kernels in order with their counts, and library products with their FLOPs."""

    results: list[np.ndarray]
    launches: list[tuple[str, LaunchCounts]]
    library: list[tuple[str, int]]

    @property
    def library_share(self) -> float:
        """The library's fraction of the FLOPs of all products.

        Kernels are counted by matrix instructions, including the padding of their tiles.
        """
        theirs = sum(flops for _, flops in self.library)
        ours = sum(matrix_flops(counts.instructions) for _, counts in self.launches)
        return theirs / (theirs + ours) if theirs else 0.0


def run_program(
    program: CompiledProgram,
    arguments: Sequence[np.ndarray],
    *,
    poison: int,
    launcher: Launcher | None = None,
    partly_written: frozenset[int] = frozenset(),
    allow_unwritten: bool = False,
) -> ProgramRun:
    """Run a program and return its results; all bytes except arguments start unwritten.

    `arguments` are all leaves that the function was compiled for, pruned ones too; they are never
    modified. For `poison` see `launch`; `launcher` replaces the emulator. Results at
    `partly_written` may have unwritten bytes. With `allow_unwritten` kernels may load unwritten
    bytes (poison).

    Raises:
        ValueError: Arguments have a wrong number, shape or dtype.
        Fault: The program does something invalid or unsupported.
    """
    code = program.executable
    memory = ProgramMemory(code.buffers, poison)
    memory.allow_unwritten = allow_unwritten
    for number, elements in code.constants.items():
        memory.write(memory.addresses[number], elements)
    for array, argument in zip(code.parameters, _kept(program, arguments), strict=True):
        memory.write(memory.addresses[array.buffer], argument)
    runtime = Runtime(memory, launcher or EmulatedLauncher(poison))
    runtime.run(code.thunks)
    results = [
        memory.read(
            memory.addresses[a.buffer], a.shape, a.dtype, allow_unwritten=place in partly_written
        )
        for place, a in enumerate(code.results)
    ]
    return ProgramRun(results, runtime.launches, runtime.library)


def _kept(program: CompiledProgram, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the arguments that remain in the compiled program."""
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
