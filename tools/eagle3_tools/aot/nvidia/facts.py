"""Extraction of a kernel's facts for H200 from its PTX and its launch in HLO.

The GPU does not run PTX: the assembler chooses registers and the order within a block. So waits are
counted in a way that the assembler cannot change: loads into registers are in flight together
between two barriers, and copies to shared memory until the wait for their group.
Sources: "PTX ISA" for the instructions; the datasheet of H200 for the matrix units' rates.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

from eagle3_tools.aot.nvidia.ptx import (
    THREADS_A_WARP,
    Access,
    SmKernel,
    find_accesses,
    lines_of,
)
from eagle3_tools.aot.target import launch_facts
from eagle3_tools.aot.triton_calls import TritonCall
from eagle3_tools.kernel_model.facts import NOTHING, Chain, KernelFacts, Load, LoopFacts, Work

_LINE = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)")
_LABEL = re.compile(r"^\s*(\$\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)")
_STORE = re.compile(r"\bst\.global(?:\.(?!v\d|[bfsu]\d)[\w:]+)*(?:\.v(\d))?\.[bfsu](\d+)")
_SHARED = re.compile(r"\b(?:ld|st)\.shared(?:\.v(\d))?\.[bfsu](\d+)")
_MATRIX_TILES = re.compile(r"\b(?:ld|st)matrix\S*\.x(\d)")
_TILE_BYTES = 4
"""Bytes of a thread in a matrix of 8 x 8 16-bit values that its warp loads or stores."""
_WAIT = re.compile(r"cp\.async\.wait_group\s+(\w+)")
_PRODUCT = re.compile(r"\b(wgmma\.mma_async|mma\.sync)\S*?\.m(\d+)n(\d+)k(\d+)(\S*)")
_RATES = {"e4m3": 8192, "e5m2": 8192, "s8": 8192}
_RATE, _WARPGROUP = 4096, 4
"""Operations a clock of a multiprocessor; mma.sync is reported to reach about 0.62 of them."""
_OF_MMA = 0.62
_CACHED = 1 / 3
"""A cache's latency relative to memory's."""


def read_facts(kernel: SmKernel, call: TritonCall, arch: str) -> KernelFacts:
    """Return the facts of a kernel as this call launches it."""
    lines = lines_of(kernel.ptx)
    accesses = list(find_accesses(lines, call))
    bare = launch_facts(
        *(kernel.name, arch, call),
        warps=kernel.threads // THREADS_A_WARP,
        registers=kernel.registers,
        lds=kernel.shared_bytes,
    )
    spans = list(_loops(lines))
    loops = []
    for first, last in spans:
        inside = [access for access in accesses if first <= access.line <= last]
        found = LoopFacts(replace(NOTHING, loads=_loads(inside)), None)
        trips = bare.trips(found, float(bare.programs))
        loops.append(LoopFacts(_work(lines, range(first, last + 1), inside, bare, trips), None))
    looped = {line for first, last in spans for line in range(first, last + 1)}
    rest = [line for line in range(len(lines)) if line not in looped]
    outside = [access for access in accesses if access.line not in looped]
    return replace(bare, loops=tuple(loops), outside=_work(lines, rest, outside, bare, 1.0))


def _loops(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each innermost loop."""
    labels = {m[1]: n for n, line in enumerate(lines) if (m := _LABEL.match(line))}
    spans = [
        (labels[m[1]], number)
        for number, line in enumerate(lines)
        if (m := _BRANCH.search(line)) and labels.get(m[1], number + 1) <= number
    ]
    for first, last in spans:
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in spans):
            yield first, last


def _loads(accesses: Iterable[Access]) -> tuple[Load, ...]:
    found: Counter[tuple[int, int, bool]] = Counter()
    for access in accesses:
        found[access.array, access.width, access.copied] += access.width * THREADS_A_WARP
    return tuple(Load(a, width, n, copied) for (a, width, copied), n in sorted(found.items()))


def _work(
    lines: Sequence[str],
    numbers: Iterable[int],
    accesses: Sequence[Access],
    bare: KernelFacts,
    trips: float,
) -> Work:
    body = [(number, lines[number]) for number in numbers]
    text = "\n".join(line for _, line in body)
    loads = _loads(accesses)
    cached = {load.array: bare.cached(load, trips) for load in loads}
    issued = sum(_LINE.match(line) is not None for _, line in body)
    matrix = sum(_matrix_clocks(*found) for found in _PRODUCT.findall(text))
    moved = sum(int(n or 1) * int(bits) // 8 for n, bits in _SHARED.findall(text))
    tiles = sum(_TILE_BYTES * int(count) for count in _MATRIX_TILES.findall(text))
    stored = sum(int(n or 1) * int(bits) // 8 for n, bits in _STORE.findall(text))
    kinds = Counter(f"{way}{types}"[:5] for way, *_, types in _PRODUCT.findall(text))
    return Work(
        loads=loads,
        chain=Chain(float(issued + matrix), float(issued), _latencies(body, accesses, cached)),
        matrix=round(matrix),
        vector=issued,
        lds=THREADS_A_WARP * (moved + tiles),
        stored=THREADS_A_WARP * stored,
        kinds=dict(kinds),
    )


def _matrix_clocks(way: str, m: str, n: str, k: str, types: str) -> float:
    """Return the clocks of a product on the quarter of a multiprocessor that a warp has."""
    rate = next((rate for name, rate in _RATES.items() if name in types), _RATE) / 4
    flop = 2 * prod(map(int, (m, n, k)))
    return flop / _WARPGROUP / rate if way.startswith("wgmma") else flop / (_OF_MMA * rate)


def _latencies(
    body: Sequence[tuple[int, str]], accesses: Sequence[Access], cached: dict[int, bool]
) -> float:
    """Return the latencies that are waited for in sequence: one between each two barriers, and
    those of copies divided by the groups that the waits leave in flight."""
    loads = {a.line: _CACHED if cached[a.array] else 1.0 for a in accesses if not a.copied}
    serial, longest = 0.0, 0.0
    for number, line in body:
        longest = max(longest, loads.get(number, 0.0))
        if "bar.sync" in line:
            serial, longest = serial + longest, 0.0
    copies = [_CACHED if cached[a.array] else 1.0 for a in accesses if a.copied]
    text = "\n".join(line for _, line in body)
    groups = max(1, text.count("cp.async.commit_group"))
    allowed = min((int(n, 0) for n in _WAIT.findall(text)), default=0)
    behind = max(copies, default=0.0) / (allowed / groups + 1)
    return max(serial + longest, behind)
