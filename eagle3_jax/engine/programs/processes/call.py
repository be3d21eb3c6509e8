"""Which program runs on which inputs, and that as bytes: the calls that other processes get."""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from eagle3_jax.engine.programs.program import Program

Inputs = tuple[Any, ...]
"""Of a program, besides weights and state: trees of NumPy arrays, or of their shapes."""
_INDEX = struct.Struct("<H")


class ProgramCall(NamedTuple):
    """One program to run, and what the host sends it."""

    program: Program
    inputs: Inputs


class Peers(Protocol):
    """The other processes of an engine: they hold parts of its mesh and make its calls too."""

    def await_compiled(self) -> None:
        """Returns when each of them has compiled its programs."""
        ...

    def send(self, message: bytes) -> None:
        """Hands a call to all of them, and does not wait until they make it."""
        ...


class CallFormat:
    """Calls as bytes: the program's place in a list that all processes have, then its inputs' bytes
    in the order and shapes that the program has. Nothing in a message is code or a size."""

    def __init__(self, programs: Sequence[Program], input_shapes: Callable[[Program], Inputs]):
        self._programs = programs
        self._input_shapes = input_shapes
        self._index = {program: index for index, program in enumerate(programs)}

    def encode(self, call: ProgramCall) -> bytes:
        """The message of a call."""
        leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(call.inputs)]
        return b"".join([_INDEX.pack(self._index[call.program]), *leaves])

    def decode(self, message: bytes) -> ProgramCall:
        """The call of a message; ValueError for one that this engine can't have sent."""
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
