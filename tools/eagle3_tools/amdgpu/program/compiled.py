"""Compile functions for AMD GPUs into the parts that the emulator needs.

The result is XLA's executable for a machine with such a GPU, including its code objects. Unlike
XLA's dump files, it is complete even if the process has compiled other programs before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from eagle3_tools.amdgpu.program.element_types import dtype_of, literal
from eagle3_tools.amdgpu.program.executable import Array, Executable, KernelLaunch
from eagle3_tools.amdgpu.program.protobuf import Message
from eagle3_tools.amdgpu.program.read_thunks import read_thunks
from eagle3_tools.amdgpu.program.serialized import read_serialized
from eagle3_tools.aot.compile import compile_for

_TUPLE = 13


def read_executable(serialized: bytes) -> Executable:
    """Read the result of a compiled program's `serialize()`; raise ValueError for unknown forms."""
    proto = read_serialized(serialized)
    allocations = proto.one(10).all(1)
    return Executable(
        buffers={a.number(1): a.number(2) for a in allocations},
        constants=_constants(proto),
        parameters=_parameters(proto, allocations),
        results=_results(proto),
        thunks=read_thunks(proto.all(13)),
    )


def _constants(proto: Message) -> dict[int, np.ndarray]:
    """Return the constants in memory, which the instructions of their buffers have as literals."""
    assignment = proto.one(2)
    defined_by = {b.number(1): b.one(3).number(4) for b in assignment.all(1)}
    computations = proto.one(1, 1).all(3)
    instructions = {i.number(35): i for c in computations for i in c.all(2)}
    wanted = {constant.number(3) for constant in proto.all(12)}
    return {
        allocation.number(1): literal(instructions[defined_by[value.number(1)]].one(8))
        for allocation in assignment.all(3)
        if allocation.number(1) in wanted
        for value in allocation.all(9)
    }


def _parameters(proto: Message, allocations: list[Message]) -> tuple[Array, ...]:
    buffers = {a.number(6): a.number(1) for a in allocations if a.number(5)}
    shapes = proto.one(9).all(1)
    return tuple(_array(buffers[place], shape) for place, shape in enumerate(shapes))


def _results(proto: Message) -> tuple[Array, ...]:
    infos = proto.all(11)
    buffers = {info.one(1).numbers(1): info.one(2).number(1) for info in infos}
    result = proto.one(9, 2)
    if result.number(2) != _TUPLE:
        return (_array(buffers[()], result),)
    return tuple(_array(buffers[place,], shape) for place, shape in enumerate(result.all(4)))


def _array(buffer: int, shape: Message) -> Array:
    dimensions, order = shape.numbers(3), shape.one(5).numbers(1)
    if order != tuple(reversed(range(len(dimensions)))):
        raise ValueError(f"expected arrays in row-major order, got {order} of {dimensions}")
    return Array(buffer, dimensions, dtype_of(shape.number(2)))


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
