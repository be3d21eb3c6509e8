"""Extraction of a kernel's facts from its machine code and its launch in HLO."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from eagle3_tools.aot.amd import operations
from eagle3_tools.aot.amd.code_object import GpuKernel
from eagle3_tools.aot.amd.decode import Instruction
from eagle3_tools.aot.amd.flow import Flow, Loop, read_flow
from eagle3_tools.aot.amd.machine_code import read_kernels
from eagle3_tools.aot.amd.operations import goes_to_lds, is_load, memory_width
from eagle3_tools.aot.amd.origins import origins
from eagle3_tools.aot.amd.timeline import of_code, of_loop
from eagle3_tools.aot.amd.trip_counts import NOTHING_KNOWN, Arguments, trip_count
from eagle3_tools.aot.target import NARROW, launch_facts
from eagle3_tools.aot.triton_calls import TritonCall
from eagle3_tools.kernel_model.facts import NOTHING, KernelFacts, Load, LoopFacts, Work

Code = tuple[Instruction, ...]


def read_facts(
    kernel: GpuKernel, call: TritonCall, arch: str, arguments: Arguments = NOTHING_KNOWN
) -> KernelFacts:
    """Return the facts of a kernel as this call launches it with these arguments."""
    code = read_kernels(kernel.code)[kernel.name]
    flow = read_flow(code.code)
    known = replace(arguments, at=code.arguments_at)
    return _Reader(kernel, call, arch, flow, known).facts()


class _Reader:
    def __init__(
        self, kernel: GpuKernel, call: TritonCall, arch: str, flow: Flow, arguments: Arguments
    ):
        self.kernel, self.call, self.arch, self.flow = kernel, call, arch, flow
        self.arguments = arguments
        self.sources = {
            pc: call.largest(places) for pc, places in origins(flow, arguments.at).items()
        }
        self.bare = launch_facts(
            *(kernel.name, arch, call),
            warps=kernel.threads // operations.LANES,
            registers=kernel.vgprs,
            lds=kernel.lds_bytes,
        )

    def facts(self) -> KernelFacts:
        innermost = [loop for loop in self.flow.loops if not self.flow.inner_of(loop)]
        most = max(map(self._loaded, innermost), default=0)
        loops = tuple(self._loop(loop, self._loaded(loop) == most) for loop in innermost)
        outside = self._work(self._outside(innermost), 1.0, looping=False)
        return replace(self.bare, loops=loops, outside=outside)

    def _outside(self, loops: Sequence[Loop]) -> Code:
        """Return the code that a program runs outside its main loop: the path to and from it."""
        inside = frozenset[int]().union(*(loop.blocks for loop in loops))
        if not loops:
            return self.flow.instructions(self.flow.blocks)
        main = max(loops, key=lambda loop: len(self.flow.instructions(loop.blocks)))
        before = self.flow.path_to(main.header)
        after = self.flow.path_from(main)
        return self.flow.instructions({*before, *after} - inside)

    def _loaded(self, loop: Loop) -> int:
        loads = filter(is_load, self.flow.instructions(loop.blocks))
        return sum(map(memory_width, loads))

    def _loop(self, loop: Loop, is_main: bool) -> LoopFacts:
        code, given = self.flow.instructions(loop.blocks), self.arguments.trips
        is_given = is_main and given is not None
        trips = given if is_given else trip_count(self.flow, loop, self.arguments)
        found = LoopFacts(replace(NOTHING, loads=self._loads(code)), trips)
        count = self.bare.trips(found, float(self.bare.programs))
        return LoopFacts(self._work(code, count, looping=True), trips)

    def _work(self, code: Code, trips: float, *, looping: bool) -> Work:
        near = self._cached(code, trips)
        kinds = Counter(kind for i in code if (kind := operations.matrix_kind(i)))
        return Work(
            loads=self._loads(code),
            chain=(of_loop if looping else of_code)(code, self.arch, near),
            matrix=sum(operations.matrix_clocks(i, self.arch) for i in code),
            vector=sum(operations.vector_clocks(i) for i in code),
            idle=sum(operations.issue_clocks(i) for i in code if i.name == "s_nop"),
            lds=sum(map(operations.lds_bytes, code)),
            stored=sum(operations.stored_bytes(i) for i in code),
            kinds=dict(kinds),
        )

    def _loads(self, code: Code) -> tuple[Load, ...]:
        found: Counter[tuple[int, int, bool]] = Counter()
        for i in filter(operations.is_load, code):
            width = operations.memory_width(i)
            key = self.sources[i.pc], width, operations.goes_to_lds(i)
            found[key] += width * operations.LANES
        return tuple(Load(a, width, n, lds) for (a, width, lds), n in sorted(found.items()))

    def _cached(self, code: Code, trips: float) -> Mapping[int, bool]:
        """Return for each load whether it finds its data in a cache."""
        of_array = {
            load.array: self.bare.cached(load, trips)
            for load in sorted(self._loads(code), key=lambda load: load.nbytes)
        }
        return {i.pc: of_array[self.sources[i.pc]] for i in filter(operations.is_load, code)}


def narrow_loads(kernel: GpuKernel, call: TritonCall) -> dict[int, int]:
    """Return argument index -> number of narrow loads of it in the code."""
    if not kernel.loads_narrowly:
        return {}
    code = read_kernels(kernel.code)[kernel.name].code
    narrow = {pc for pc, i in code.items() if memory_width(i) <= NARROW and not goes_to_lds(i)}
    found = origins(read_flow(code))
    return dict(Counter(call.largest(places) for pc, places in found.items() if pc in narrow))
