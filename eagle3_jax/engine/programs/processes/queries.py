"""Questions from a process without devices to the process that runs its calls."""

from collections.abc import Callable
from enum import IntEnum
from io import BytesIO
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


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
