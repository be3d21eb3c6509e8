"""Program calls, and their byte format for other processes."""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

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
        ...

    def send(self, message: bytes) -> None:
        """Send a call to all processes without waiting for its execution."""
        ...


class CallFormat:
    """Byte format of calls: the program's index in a shared list, then its inputs' bytes in order.

    A message contains neither code nor sizes.
    """

    def __init__(self, programs: Sequence[Program], input_shapes: Callable[[Program], Inputs]):
        self._programs = programs
        self._input_shapes = input_shapes
        self._index = {program: index for index, program in enumerate(programs)}

    def encode(self, call: ProgramCall) -> bytes:
        """Encode a call."""
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
