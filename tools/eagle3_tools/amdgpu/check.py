"""Check one case on one GPU: compile it, emulate it, compare it with two computations."""

import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import numpy as np

from eagle3_tools.amdgpu.cases import EmulatedCase, emulated_cases
from eagle3_tools.amdgpu.emulator.launch import LaunchCounts
from eagle3_tools.amdgpu.emulator.machine import Machine
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.native.machine import machine_of
from eagle3_tools.amdgpu.emulator.operations import translate
from eagle3_tools.amdgpu.emulator.waits import LDS, missing_waits
from eagle3_tools.amdgpu.program.compiled import CompiledProgram, Source, compile_source
from eagle3_tools.amdgpu.program.run import ProgramRun, run_program
from eagle3_tools.amdgpu.program.runtime import EmulatedLauncher
from eagle3_tools.aot.amd.machine_code import Kernel, read_kernels
from eagle3_tools.aot.launches import launches

POISON = (0x7FC1_2345, 0xA5A5_5A5B)
"""Initial contents of registers and local memory: a NaN; a small number or wild address."""


@dataclass(frozen=True)
class Checked:
    """Result of a check, without `problems` if it passed.

    `own` are the names of our Pallas kernels, without the number that XLA may append. `there` has
    all instruction names in the kernels' code, `launches` the kernels in order with their counts.
    `unsettled` has XLA's kernels that reach a barrier with local memory accesses in flight. Its
    sorts do: they rely on the order in which a compute unit executes accesses.
    """

    case: str
    arch: str
    problems: tuple[str, ...]
    launches: tuple[tuple[str, LaunchCounts], ...] = ()
    there: frozenset[str] = frozenset()
    reference: float = float("nan")
    interpreted: float = float("nan")
    allowed: tuple[float, float] = (float("nan"), float("nan"))
    library_share: float = 0.0
    seconds: float = 0.0
    unsettled: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()

    @property
    def workgroups(self) -> int:
        """Workgroups of all launches."""
        return sum(counts.workgroups for _, counts in self.launches)

    @property
    def instructions(self) -> Counter[str]:
        """Wave instructions of all launches, by name."""
        return sum((counts.instructions for _, counts in self.launches), Counter())

    def failed(self, *problems: str) -> "Checked":
        """Add problems."""
        return replace(self, problems=(*self.problems, *problems))

    def ran(self, run: ProgramRun, begin: float, **errors: Any) -> "Checked":
        """Add a run that began at this time, and errors of its results.

        Our kernels must not load beyond their arrays; XLA's own do so without using the data.
        """
        beyond = [
            f"{name}: {counts.loads_beyond} loads behind their buffer"
            for name, counts in run.launches
            if counts.loads_beyond and _base_name(name) in self.own
        ]
        return replace(
            self.failed(*beyond),
            launches=tuple(run.launches),
            library_share=run.library_share,
            seconds=time.monotonic() - begin,
            **errors,
        )


def code_of(name: str, arch: str, *programs: CompiledProgram) -> Checked:
    """Check all code of the programs' kernels, executed or not.

    No register may be used before it loads, and no instruction be unknown.
    """
    own = frozenset(
        one.name for program in programs for one in launches(program.hlo) if one.kind == "kernel"
    )
    problems, there, unsettled = list[str](), set[str](), set[str]()
    for kernel in (kernel for program in programs for kernel in kernels_of(program)):
        for m in missing_waits(kernel.code):
            register = f"{m.register[0]}{m.register[1]}"
            if m.register == LDS and _base_name(kernel.name) not in own:
                unsettled.add(kernel.name)
            else:
                where = f"{kernel.name}: {m.name} at {m.pc:#x}"
                problems.append(f"{where} uses {register}, still loading")
        for i in kernel.code.values():
            there.add(i.name)
            try:
                translate(i)
            except Fault as fault:
                problems.append(f"{kernel.name}: {fault}")
    found = Checked(name, arch, tuple(problems), own=own)
    return replace(found, there=frozenset(there), unsettled=frozenset(unsettled))


def kernels_of(program: CompiledProgram) -> list[Kernel]:
    """Return the kernels that the program launches, each once."""
    read = {code: read_kernels(code) for code in program.objects}
    names = dict.fromkeys((launch.kernel, launch.code) for launch in program.launches)
    return [read[code][name] for name, code in names]


def _base_name(kernel: str) -> str:
    """Strip the number that XLA appends to repeated names."""
    return kernel.partition("__")[0]


def check_named(name: str, arch: str, poisons: int) -> Checked:
    """Check the case of this name with so many poisons."""
    return check(_by_name()[name], arch, POISON[:poisons])


@cache
def _by_name() -> dict[str, EmulatedCase]:
    return {case.name: case for case in emulated_cases()}


def check(case: EmulatedCase, arch: str, poisons: tuple[int, ...] = POISON) -> Checked:
    """Run the case with every poison; the results must be bitwise equal.

    The first run is NumPy's and the others are of the C form, so both are compared too. Cases of a
    real shape take too long in NumPy.
    """
    begin = time.monotonic()
    arguments = case.arguments(arch)
    program = compile_source(source_of(case, arch, arguments))
    found = code_of(case.name, arch, program)
    given = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    machines = (machine_of if case.long else Machine, machine_of)
    try:
        runs = [
            run_program(
                program,
                given,
                poison=poison,
                launcher=EmulatedLauncher(poison, machine),
                partly_written=case.partly_written,
                allow_unwritten=case.idle_rows,
            )
            for poison, machine in zip(poisons, machines, strict=False)
        ]
    except Fault as fault:
        return found.failed(str(fault))
    results = runs[0].results
    for other in runs[1:]:
        if not _same(case, results, other.results):
            said = "results depend on what registers held at the start, or on the machine"
            found = found.failed(said)
    reference = case.compare(results, case.expected(arch, arguments))
    interpreted = case.compare(results, case.interpreted(arch, arguments))
    allowed = case.tolerance.reference, case.tolerance.interpreted
    for error, most, what in zip(
        (reference, interpreted), allowed, ("reference.py", "the interpreted kernel"), strict=True
    ):
        if not error <= most:
            found = found.failed(f"{error:.2g} from {what}, where {most:g} is allowed")
    errors = {"reference": reference, "interpreted": interpreted, "allowed": allowed}
    return found.ran(runs[0], begin, **errors)


def _same(case: EmulatedCase, results: list[np.ndarray], others: list[np.ndarray]) -> bool:
    """Compare bits; for partly written results compare only the meaningful part."""
    pairs = enumerate(zip(results, others, strict=True))
    whole = [pair for place, pair in pairs if place not in case.partly_written]
    return all(a.tobytes() == b.tobytes() for a, b in whole) and case.compare(results, others) == 0


def source_of(case: EmulatedCase, arch: str, arguments: tuple[Any, ...]) -> Source:
    """Return the case as a function of its leaves."""
    leaves, tree = jax.tree.flatten(arguments)
    counts = [len(jax.tree.leaves(argument)) for argument in arguments]
    owner = [place for place, count in enumerate(counts) for _ in range(count)]
    donated = tuple(leaf for leaf, place in enumerate(owner) if place in case.donate)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
    run = case.case.run
    return Source(arch, lambda *given: run(*jax.tree.unflatten(tree, given)), shapes, donated)
