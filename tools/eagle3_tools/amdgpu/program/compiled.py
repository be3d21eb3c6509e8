"""Compiles functions for AMD's GPUs, and brings back what a run of them needs.

That is what XLA would write for a machine with such a GPU: the executable, with its code objects.
It is complete however many programs a process has compiled before, unlike the files that XLA
leaves.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from eagle3_tools.amdgpu.program.executable import Executable, KernelLaunch
from eagle3_tools.amdgpu.program.read_executable import read_executable
from eagle3_tools.aot.compile import compile_for


@dataclass(frozen=True)
class CompiledProgram:
    """A program for one GPU. hlo: XLA's optimised module, for people to read.

    arguments: how many leaves the function takes; kept: places of those that the program has too,
    as jit prunes the others.
    """

    arch: str
    hlo: str
    arguments: int
    kept: tuple[int, ...]
    executable: Executable

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """In order; those of a loop or a branch once."""
        return tuple(step for step in self.executable.steps if isinstance(step, KernelLaunch))

    @property
    def objects(self) -> tuple[bytes, ...]:
        """The code objects that it launches kernels of, each once."""
        return tuple(dict.fromkeys(launch.code for launch in self.launches))


@dataclass(frozen=True)
class Source:
    """What to compile. shapes: pytrees of ShapeDtypeStruct; donated: which of them."""

    arch: str
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def compile_source(source: Source) -> CompiledProgram:
    """In this process. Raises what the compiler raises, RuntimeError without extra `rocm`."""
    compiled: Any = compile_for(source.arch, source.function, *source.shapes, donate=source.donated)
    return CompiledProgram(
        source.arch,
        compiled.as_text(),
        len(jax.tree.leaves(source.shapes)),
        tuple(sorted(compiled._executable._kept_var_idx)),
        read_executable(compiled.runtime_executable().serialize()),
    )
