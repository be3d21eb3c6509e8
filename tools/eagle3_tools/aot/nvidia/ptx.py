"""Kernel resources from PTX and its assembler: registers, spills, memory accesses, products.

Sources: "PTX ISA" for the instructions, "CUDA C++ Programming Guide" (compute capability 9.0) and
its occupancy calculator for the allocation of registers and shared memory.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from eagle3_tools.aot.target import Kernel
from eagle3_tools.aot.triton_calls import TritonCall

THREADS_A_WARP = 32
_REGISTERS, _THREADS, _BLOCKS = 65_536, 2048, 32
_SHARED_BYTES, _RESERVED_BYTES, _SHARED_UNIT = 233_472, 1024, 128
"""Limits of a streaming multiprocessor; every block uses some shared memory for the system."""
_REGISTER_UNIT, _WIDEST = 8, 16

_ENTRY = re.compile(r"\.entry (\w+)")
_PRODUCT = re.compile(r"\b(wgmma)\.mma_async\S*|\b(mma)\.sync\S*")
_SHAPE = re.compile(r"\.(m\d+n\d+k\d+)")
_TYPE = re.compile(r"\.(b?f16|tf32|e4m3|e5m2|[su]8|f64)(?=[.\s]|$)")
_REGISTER = re.compile(r"%rd?\d+")
_PARAMETER = re.compile(r"ld\.param(?:::entry)?\.\w+\s+(%rd\d+), \[\w+_param_(\d+)\]")
_LOAD = re.compile(
    r"\bld\.global(?:\.(?!v\d|[bfsu]\d)[\w:]+)*(?:\.v(\d))?\.[bfsu](\d+)[^\[]*\[ *(%rd\d+)"
)
_COPY = re.compile(r"\bcp\.async\.c[ag]\.shared\S* \[[^\]]*\], *\[ *(%rd\d+)[^\]]*\], *(\w+)")


@dataclass(frozen=True)
class Access:
    """A load in line `line` of the body; width: bytes a thread; copied: to shared memory."""

    line: int
    array: int
    width: int
    copied: bool


def lines_of(ptx: str) -> list[str]:
    """Split PTX into lines with one statement or label each."""
    return [line for line in re.split(r"[\n;]", ptx) if line.strip()]


def find_accesses(lines: Sequence[str], call: TritonCall | None = None) -> Iterator[Access]:
    """Yield every load, with the argument of a call that its address was computed from."""
    origins: dict[str, frozenset[int]] = {}
    for number, line in enumerate(lines):
        if found := _PARAMETER.search(line):
            origins[found[1]] = frozenset([int(found[2])])
        elif found := _COPY.search(line):
            array = call.largest(origins.get(found[1], ())) if call else -1
            yield Access(number, array, int(found[2], 0), True)
        elif found := _LOAD.search(line):
            array = call.largest(origins.get(found[3], ())) if call else -1
            yield Access(number, array, int(found[1] or 1) * int(found[2]) // 8, False)
        else:
            target, *sources = [*_REGISTER.findall(line), ""][:-1] or [""]
            if target.startswith("%rd"):
                origins[target] = frozenset().union(*(origins.get(s, frozenset()) for s in sources))


@dataclass(frozen=True)
class SmKernel(Kernel):
    """One compiled kernel.

    registers, spill_bytes: of a thread; shared_bytes: of a block. matrix: matrix instructions by
    issue mode, multiplied type and shape, `wgmma.bf16.m64n64k16`. loads: bytes that a thread loads
    at once -> number of such loads in the code; copies: the same for loads to shared memory that
    bypass the registers.
    """

    name: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int
    matrix: dict[str, int]
    loads: dict[int, int]
    copies: dict[int, int]
    ptx: str = field(default="", repr=False, compare=False)
    """PTX code as the assembler gets it."""

    @property
    def wide_loads(self) -> int:
        """Number of loads of 16 bytes a thread, the widest, to any destination."""
        return self.loads.get(_WIDEST, 0) + self.copies.get(_WIDEST, 0)

    @property
    def narrow_loads(self) -> int:
        """Number of all narrower loads."""
        return sum(self.loads.values()) + sum(self.copies.values()) - self.wide_loads

    @property
    def blocks_per_sm(self) -> int:
        """Blocks that fit on a streaming multiprocessor; compute capability 9.0."""
        warps = -(-self.threads // THREADS_A_WARP)
        registers = THREADS_A_WARP * _rounded(max(self.registers, 1), _REGISTER_UNIT)
        shared = _rounded(self.shared_bytes + _RESERVED_BYTES, _SHARED_UNIT)
        return min(
            _REGISTERS // registers // warps,
            _THREADS // THREADS_A_WARP // warps,
            _SHARED_BYTES // shared,
            _BLOCKS,
        )


def read_kernels(ptx: str, log: str, dynamic: dict[str, int]) -> Iterator[SmKernel]:
    """Yield the kernels of one run of the assembler.

    dynamic: shared memory that launches add, by name. Raises ValueError if the assembler's log
    lacks a figure.
    """
    said = _by_name(log)
    for name, body in _bodies(ptx):
        figures, accesses = said.get(name, ""), list(find_accesses(lines_of(body)))
        threads = re.search(r"\.(?:req|max)ntid (\d+)(?:, (\d+), (\d+))?", body)
        if threads is None or "registers" not in figures:
            raise ValueError(f"the assembler does not say what {name} takes")
        yield SmKernel(
            name=name,
            registers=_figure(r"Used (\d+) registers", figures),
            spill_bytes=_figure(r"(\d+) bytes spill stores", figures),
            shared_bytes=_figure(r"(\d+) bytes smem", figures) + dynamic.get(name, 0),
            threads=int(threads[1]) * int(threads[2] or 1) * int(threads[3] or 1),
            matrix=dict(Counter(map(_product, _PRODUCT.finditer(body)))),
            loads=dict(Counter(a.width for a in accesses if not a.copied)),
            copies=dict(Counter(a.width for a in accesses if a.copied)),
            ptx=body,
        )


def _bodies(ptx: str) -> Iterator[tuple[str, str]]:
    parts = _ENTRY.split(ptx)
    return zip(parts[1::2], parts[2::2], strict=True)


def _by_name(log: str) -> dict[str, str]:
    """Split the assembler's log by kernel."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _figure(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _product(found: re.Match[str]) -> str:
    """Shorten wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 to wgmma.bf16.m64n64k16."""
    shape, types = _SHAPE.search(found[0]), _TYPE.findall(found[0])
    return ".".join(
        [found[1] or found[2], types[-1] if types else "unknown", shape[1] if shape else "unknown"]
    )


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
