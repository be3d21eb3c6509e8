"""A compiled GPU program as XLA's runtime would execute it: buffers, and thunks that use them.

It is read from what XLA serialises for a machine with a GPU, so it holds the very code objects,
launches and buffer slices that would be used there. Guessing a kernel's arguments from the order of
HLO operands is not needed, and neither is the meaning of bitcasts, tuples and aliases.
Source: XLA's "service/gpu/gpu_executable.proto" and "backends/gpu/runtime/thunk.proto".
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Dimensions = tuple[int, int, int]


@dataclass(frozen=True)
class Slice:
    """`size` bytes of a buffer, from byte `offset`. buffer: its number."""

    buffer: int
    offset: int
    size: int

    def overlaps(self, other: "Slice") -> bool:
        """Whether they share bytes."""
        apart = self.offset + self.size <= other.offset or other.offset + other.size <= self.offset
        return self.buffer == other.buffer and not apart and self.size > 0 and other.size > 0


@dataclass(frozen=True)
class Thunk:
    """A step. name: of the HLO instruction that it does, or of which it does a part."""

    name: str


@dataclass(frozen=True)
class KernelLaunch(Thunk):
    """A launch of `kernel`, which is in the code object `code`.

    arguments: what it gets the addresses of, in order; written: whether it writes each; zeroed:
    places of arguments that are filled with zeros before. grid: workgroups; threads: of each.
    dynamic_lds: bytes of local memory besides what the code object says.
    """

    kernel: str
    code: bytes
    arguments: tuple[Slice, ...]
    written: tuple[bool, ...]
    zeroed: tuple[int, ...]
    grid: Dimensions
    threads: Dimensions
    dynamic_lds: int

    @property
    def operands(self) -> list[Slice]:
        """What it must only read."""
        written = self._where(True)
        return [a for a in self._where(False) if not any(map(a.overlaps, written))]

    @property
    def results(self) -> list[Slice]:
        """What it writes and, as it is none of its operands, must not read before."""
        read = self._where(False)
        once = [a for a in self._where(True) if self.arguments.count(a) == 1]
        return [a for a in once if not any(map(a.overlaps, read))]

    def _where(self, written: bool) -> list[Slice]:
        found = zip(self.arguments, self.written, strict=True)
        return [argument for argument, write in found if write == written]


@dataclass(frozen=True)
class Copy(Thunk):
    """Between buffers of the GPU."""

    source: Slice
    target: Slice


@dataclass(frozen=True)
class Fill(Thunk):
    """Writes a 32-bit pattern again and again."""

    target: Slice
    pattern: int


@dataclass(frozen=True)
class While(Thunk):
    """trip_count: how often the body runs where XLA knows it; else `condition` says."""

    holds: Slice
    condition: tuple[Thunk, ...]
    body: tuple[Thunk, ...]
    trip_count: int | None


@dataclass(frozen=True)
class Conditional(Thunk):
    """index: int32, or a boolean that chooses the first branch where it is true."""

    index: Slice
    branches: tuple[tuple[Thunk, ...], ...]


@dataclass(frozen=True)
class Sequence(Thunk):
    """Steps in order; those of an asynchronous operation are done where it begins."""

    thunks: tuple[Thunk, ...]


@dataclass(frozen=True)
class Matrix:
    """Matrices in a slice, of elements `stride` (batch, row, column) apart."""

    where: Slice
    dtype: np.dtype
    shape: Dimensions
    stride: Dimensions


@dataclass(frozen=True)
class LibraryProduct(Thunk):
    """result = alpha * left @ right + beta * added, by hipBLASLt or rocBLAS; a bias of columns is
    added too, and gelu (by tanh) is taken of all that.

    unknown: what else the library is told, which nobody here computes; empty in most.
    """

    left: Matrix
    right: Matrix
    added: Matrix
    result: Matrix
    alpha: float
    beta: float
    unknown: str
    bias: Matrix | None = None
    gelu: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        batch, rows, inner = self.left.shape
        return 2 * batch * rows * inner * self.right.shape[2]


@dataclass(frozen=True)
class Unknown(Thunk):
    """A step that nobody here can do. what: its kind."""

    what: str


@dataclass(frozen=True)
class Array:
    """An argument or a result of the whole program, and the buffer it is in."""

    buffer: int
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Executable:
    """buffers: number -> bytes. constants: number of a buffer -> its elements, flat."""

    buffers: dict[int, int]
    constants: dict[int, np.ndarray]
    parameters: tuple[Array, ...]
    results: tuple[Array, ...]
    thunks: tuple[Thunk, ...]

    @property
    def steps(self) -> Iterator[Thunk]:
        """Every thunk in order, those of a loop or branch once, behind it."""
        return _steps(self.thunks)


def _steps(thunks: tuple[Thunk, ...]) -> Iterator[Thunk]:
    for thunk in thunks:
        yield thunk
        match thunk:
            case Sequence(thunks=inner):
                yield from _steps(inner)
            case While(condition=condition, body=body):
                yield from _steps((*condition, *body))
            case Conditional(branches=branches):
                for branch in branches:
                    yield from _steps(branch)
