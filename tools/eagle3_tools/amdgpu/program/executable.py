"""A compiled GPU program as XLA's runtime executes it: buffers, and thunks that use them.

It is read from XLA's serialised executable, so it has the real code objects, launches and buffer
slices. Kernel arguments need not be inferred from HLO operands, nor bitcasts, tuples and aliases be
interpreted. Source: XLA's "service/gpu/gpu_executable.proto" and
"backends/gpu/runtime/thunk.proto".
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Dimensions = tuple[int, int, int]


@dataclass(frozen=True)
class Slice:
    """`size` bytes from byte `offset` of the buffer with this number."""

    buffer: int
    offset: int
    size: int

    def overlaps(self, other: "Slice") -> bool:
        """Return whether the slices share bytes."""
        apart = self.offset + self.size <= other.offset or other.offset + other.size <= self.offset
        return self.buffer == other.buffer and not apart and self.size > 0 and other.size > 0


@dataclass(frozen=True)
class Thunk:
    """A step; `name` is the HLO instruction that it implements, maybe in part."""

    name: str


@dataclass(frozen=True)
class KernelLaunch(Thunk):
    """A launch of `kernel` from the code object `code`, with the addresses of `arguments`.

    `written` tells which arguments it writes; those at `zeroed` are filled with zeros before.
    `dynamic_lds` is in bytes, beyond the local memory in the code object.
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
        """Slices that it must only read."""
        written = self._where(True)
        return [a for a in self._where(False) if not any(map(a.overlaps, written))]

    @property
    def results(self) -> list[Slice]:
        """Slices that it writes and, as they are no operands, must not read before."""
        read = self._where(False)
        once = [a for a in self._where(True) if self.arguments.count(a) == 1]
        return [a for a in once if not any(map(a.overlaps, read))]

    def _where(self, written: bool) -> list[Slice]:
        found = zip(self.arguments, self.written, strict=True)
        return [argument for argument, write in found if write == written]


@dataclass(frozen=True)
class Copy(Thunk):
    """A copy between buffers of the GPU."""

    source: Slice
    target: Slice


@dataclass(frozen=True)
class Fill(Thunk):
    """Fill with a repeated 32-bit pattern."""

    target: Slice
    pattern: int


@dataclass(frozen=True)
class While(Thunk):
    """A loop. If `trip_count` is None, `condition` decides."""

    holds: Slice
    condition: tuple[Thunk, ...]
    body: tuple[Thunk, ...]
    trip_count: int | None


@dataclass(frozen=True)
class Conditional(Thunk):
    """A branch; `index` is int32, or a boolean that selects the first branch if true."""

    index: Slice
    branches: tuple[tuple[Thunk, ...], ...]


@dataclass(frozen=True)
class Sequence(Thunk):
    """Steps in order. Those of an asynchronous operation run where it starts."""

    thunks: tuple[Thunk, ...]


@dataclass(frozen=True)
class Matrix:
    """Matrices in a slice; `stride` (batch, row, column) is in elements."""

    where: Slice
    dtype: np.dtype
    shape: Dimensions
    stride: Dimensions


@dataclass(frozen=True)
class LibraryProduct(Thunk):
    """result = alpha * left @ right + beta * added, computed by hipBLASLt or rocBLAS.

    A bias per column is added, and gelu (tanh form) is applied last. `unknown` names further
    options, which are not supported; it is empty in most cases.
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
    """A step that is not supported; `what` is its kind."""

    what: str


@dataclass(frozen=True)
class Array:
    """An argument or result of the program, and its buffer."""

    buffer: int
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class Executable:
    """A program; `buffers` maps numbers to bytes, `constants` buffer numbers to flat elements."""

    buffers: dict[int, int]
    constants: dict[int, np.ndarray]
    parameters: tuple[Array, ...]
    results: tuple[Array, ...]
    thunks: tuple[Thunk, ...]

    @property
    def steps(self) -> Iterator[Thunk]:
        """Every thunk in order; those of a loop or branch once, after it."""
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
