"""What a process without devices asks the one whose devices run its calls, and the answers."""

from collections.abc import Callable
from enum import IntEnum
from io import BytesIO
from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class About(IntEnum):
    """What a question is about: its first byte.

    An output of the last call: behind it its place among all leaves, a byte. Pages: slots of the
    host's memory, little-endian int32. A trace of JAX's profiler: its directory there, in UTF-8;
    the answer is empty, or says what went wrong.
    """

    OUTPUT = 0
    SAVED_PAGES = 1
    STAGED_PAGES = 2
    START_TRACE = 3
    STOP_TRACE = 4


class Asked(NamedTuple):
    """A question as it comes in among calls. answer: takes what it is answered with, or the error
    that leaves it without; from any thread."""

    question: bytes
    answer: Callable[[bytes | Exception], object]


def about_output(place: int) -> bytes:
    """The question for the value of an output."""
    return bytes((About.OUTPUT, place))


def about_pages(about: About, slots: Int[np.ndarray, " slots"]) -> bytes:
    """The question whether all these slots hold their pages, or have reached the devices."""
    return bytes((about,)) + slots.astype("<i4").tobytes()


def slots_of(question: bytes) -> Int[np.ndarray, " slots"]:
    """Of a question about pages."""
    return np.frombuffer(question, "<i4", offset=1)


def to_bytes(array: np.ndarray) -> bytes:
    """NumPy's own file format, which tells dtype and shape."""
    file = BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def from_bytes(data: bytes) -> np.ndarray:
    """What `to_bytes` was given; ValueError for anything else, objects included."""
    return np.lib.format.read_array(BytesIO(data), allow_pickle=False)
