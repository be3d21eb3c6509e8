"""Reads a serialised executable: field numbers of XLA's "service/gpu/gpu_executable.proto"."""

import numpy as np

from eagle3_tools.amdgpu.program.element_types import dtype_of, literal
from eagle3_tools.amdgpu.program.executable import Array, Executable
from eagle3_tools.amdgpu.program.protobuf import Message
from eagle3_tools.amdgpu.program.read_thunks import read_thunks
from eagle3_tools.amdgpu.program.serialized import read_serialized

_TUPLE = 13


def read_executable(serialized: bytes) -> Executable:
    """What a compiled program's `serialize()` gives; ValueError where its form is not known."""
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
    """Of what is in memory: the buffers' instructions have them as literals."""
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
