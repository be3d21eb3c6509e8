"""Loads in a kernel's PTX with the arguments that they read."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eagle3_tools.aot.nvidia.ptx import SmKernel
from eagle3_tools.aot.target import NARROW
from eagle3_tools.aot.triton_calls import TritonCall

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


def lines_of(kernel: SmKernel) -> list[str]:
    """Split PTX into lines with one statement or label each."""
    return [line for line in re.split(r"[\n;]", kernel.ptx) if line.strip()]


def find_accesses(lines: Sequence[str], call: TritonCall) -> Iterator[Access]:
    """Yield every load with the argument that its address was computed from."""
    origins: dict[str, frozenset[int]] = {}
    for number, line in enumerate(lines):
        if found := _PARAMETER.search(line):
            origins[found[1]] = frozenset([int(found[2])])
        elif found := _COPY.search(line):
            array = _largest(origins.get(found[1], frozenset()), call)
            yield Access(number, array, int(found[2], 0), True)
        elif found := _LOAD.search(line):
            array = _largest(origins.get(found[3], frozenset()), call)
            yield Access(number, array, int(found[1] or 1) * int(found[2]) // 8, False)
        else:
            target, *sources = [*_REGISTER.findall(line), ""][:-1] or [""]
            if target.startswith("%rd"):
                origins[target] = frozenset().union(*(origins.get(s, frozenset()) for s in sources))


def _largest(places: Iterable[int], call: TritonCall) -> int:
    return max(places, key=lambda place: call.operands.get(place, 0), default=-1)


def narrow_loads(kernel: SmKernel, call: TritonCall) -> dict[int, int]:
    """Return argument index -> number of loads of one or two bytes a thread in the code."""
    found = dict[int, int]()
    for access in find_accesses(lines_of(kernel), call):
        if access.width <= NARROW:
            found[access.array] = found.get(access.array, 0) + 1
    return found
