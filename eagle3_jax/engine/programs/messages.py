"""Messages between the processes of an engine: program calls, and queries about their results."""

import math
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from io import BytesIO
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Int

from eagle3_jax.engine.programs.program import Program

Inputs = tuple[Any, ...]
"""Inputs besides weights and state: trees of NumPy arrays, or of their shapes."""
_INDEX = struct.Struct("<H")


class ProgramCall(NamedTuple):
    """A program to run and its inputs from the host."""

    program: Program
    inputs: Inputs


class Peers(Protocol):
    """The other processes of an engine, which hold parts of its mesh and make the same calls."""

    def await_compiled(self) -> None:
        """Return when every process has compiled its programs."""

    def send(self, message: bytes) -> None:
        """Send a call to all processes without waiting for its execution."""


class CallFormat:
    """Byte format of calls: the program's index in a shared list, then its inputs' bytes in order.

    A message contains neither code nor sizes.
    """

    def __init__(self, programs: Sequence[Program], input_shapes: Callable[[Program], Inputs]):
        self._programs = programs
        self._input_shapes = input_shapes
        self._index = {program: index for index, program in enumerate(programs)}

    def encode(self, call: ProgramCall) -> bytes:
        leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(call.inputs)]
        return b"".join([_INDEX.pack(self._index[call.program]), *leaves])

    def decode(self, message: bytes) -> ProgramCall:
        """Decode a call; raise ValueError for a message that this engine cannot have sent."""
        (index,) = _INDEX.unpack_from(message)
        if index >= len(self._programs):
            raise ValueError(f"a call names program {index} of {len(self._programs)}")
        program = self._programs[index]
        shapes, tree = jax.tree.flatten(self._input_shapes(program))
        sizes = [math.prod(shape.shape) * shape.dtype.itemsize for shape in shapes]
        if len(message) != _INDEX.size + sum(sizes):
            raise ValueError(
                f"a call of {program} takes {_INDEX.size + sum(sizes)} bytes, got {len(message)}"
            )
        leaves, start = [], _INDEX.size
        for shape, size in zip(shapes, sizes, strict=True):
            flat = np.frombuffer(message, shape.dtype, math.prod(shape.shape), start)
            leaves.append(flat.reshape(shape.shape))
            start += size
        return ProgramCall(program, jax.tree.unflatten(tree, leaves))


class QueryKind(IntEnum):
    """Subject of a question: its first byte.

    The following bytes are, for an output of the last call, its index among all leaves (one byte);
    for pages, slots of host memory (little-endian int32); for a trace of JAX's profiler, its
    directory on that host (UTF-8). The answer about a trace is empty or the error.
    """

    OUTPUT = 0
    SAVED_PAGES = 1
    STAGED_PAGES = 2
    START_TRACE = 3
    STOP_TRACE = 4


class PendingQuery(NamedTuple):
    """A question among calls. `answer` takes the answer or an error. Thread-safe."""

    question: bytes
    answer: Callable[[bytes | Exception], object]


def output_query(place: int) -> bytes:
    """Make the question for the value of an output."""
    return bytes((QueryKind.OUTPUT, place))


def pages_query(about: QueryKind, slots: Int[np.ndarray, " slots"]) -> bytes:
    """Make the question whether all these slots are saved, or staged on the devices."""
    return bytes((about,)) + slots.astype("<i4").tobytes()


def queried_slots(question: bytes) -> Int[np.ndarray, " slots"]:
    """Return the slots in a question about pages."""
    return np.frombuffer(question, "<i4", offset=1)


def to_bytes(array: np.ndarray) -> bytes:
    """Serialize with NumPy's file format, which includes dtype and shape."""
    file = BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def from_bytes(data: bytes) -> np.ndarray:
    """Invert `to_bytes`; raise ValueError for other data, including objects."""
    return np.lib.format.read_array(BytesIO(data), allow_pickle=False)
