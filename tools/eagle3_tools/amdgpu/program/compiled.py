"""Compile functions for AMD GPUs into the parts that the emulator needs.

The result is XLA's executable for a machine with such a GPU, including its code objects. Unlike
XLA's dump files, it is complete even if the process has compiled other programs before.
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
    """A program for one GPU; `hlo` is XLA's optimised module as text.

    The function takes `arguments` leaves. `kept` are the indices of those that jit does not prune.
    """

    arch: str
    hlo: str
    arguments: int
    kept: tuple[int, ...]
    executable: Executable

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        """Launches in order; those in a loop or branch once."""
        return tuple(step for step in self.executable.steps if isinstance(step, KernelLaunch))

    @property
    def objects(self) -> tuple[bytes, ...]:
        """Code objects of the launched kernels, each once."""
        return tuple(dict.fromkeys(launch.code for launch in self.launches))


@dataclass(frozen=True)
class Source:
    """A function to compile. `shapes` are pytrees of ShapeDtypeStruct, `donated` their indices."""

    arch: str
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def compile_source(source: Source) -> CompiledProgram:
    """Compile in this process; raise RuntimeError without extra `rocm`, or the compiler's error."""
    compiled: Any = compile_for(source.arch, source.function, *source.shapes, donate=source.donated)
    return CompiledProgram(
        source.arch,
        compiled.as_text(),
        len(jax.tree.leaves(source.shapes)),
        tuple(sorted(compiled._executable._kept_var_idx)),
        read_executable(compiled.runtime_executable().serialize()),
    )
