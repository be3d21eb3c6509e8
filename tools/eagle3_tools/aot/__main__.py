"""python -m eagle3_tools.aot: compile every kernel at every named shape with XLA's GPU compilers.

AMD's compiler needs the extra `rocm`, gcc and binutils, NVIDIA's the extra `cuda-check`; neither
needs a GPU. Exit status 1 if a kernel does not meet its expectations.
"""

import argparse
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from eagle3_tools.aot.check import Checked, check_named, read_named
from eagle3_tools.aot.report import overview, summary, table, write_results
from eagle3_tools.aot.targets import TARGETS, target_of
from eagle3_tools.checks.check import Check, console_of, print_lines
from eagle3_tools.checks.pool import Failure
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import ARCHS, Case
from eagle3_tools.kernel_model.facts import KernelFacts, Work
from eagle3_tools.kernel_model.gpus import BY_ARCH, ModelGpu
from eagle3_tools.kernel_model.named import named
from eagle3_tools.kernel_model.predict import Prediction
from eagle3_tools.kernel_model.record import FOLDER, CaseFacts, write_record


def facts_lines(case: CaseFacts, gpu: ModelGpu) -> Iterator[str]:
    """Yield lines for each launch of the case, then the total against the case's floor."""
    yield f"{case.name} {gpu.arch}"
    for facts, found in zip(case.kernels, case.predictions(gpu), strict=True):
        yield from _kernel_lines(facts, found, gpu)
    if case.kernels:
        yield f"  all: {_against_floor(case.seconds(gpu), case.floor / gpu.hbm)}"


def _kernel_lines(facts: KernelFacts, found: Prediction, gpu: ModelGpu) -> Iterator[str]:
    main = facts.main
    yield (
        f"  {facts.name}: {found.programs:.0f} programs of {facts.warps} waves, "
        f"{found.resident} a unit, {found.rounds:.1f} rounds, {found.steps:.0f} steps; "
        f"{facts.registers} registers, {facts.lds / 1024:.0f} KiB of LDS, {facts.stages} stages"
    )
    yield (
        f"    a wave's step: loads {_loads(main)}; LDS {main.lds / 1024:.1f} KiB; clocks: "
        f"matrix {main.matrix:.0f}, vector {main.vector:.0f}, s_nop {main.idle:.0f}; waits for "
        f"{main.chain.latencies:.2f} latencies a step, {facts.outside.chain.latencies:.2f} outside"
    )
    limits = ", ".join(f"{name} {s * 1e6:.1f}" for name, s in found.parts.items())
    yield (
        f"    {found.in_flight / 1024:.1f} KiB in flight a unit, {gpu.needed / 1024:.0f} needed; "
        f"us of the first round: {limits}"
    )
    yield f"    {_against_floor(found.seconds, found.floor_seconds)}, limit: {found.limit}"


def _loads(work: Work) -> str:
    widths: Counter[tuple[int, bool]] = Counter()
    for load in work.loads:
        widths[load.width, load.to_lds] += load.nbytes
    return ", ".join(
        f"{nbytes / 1024:g} KiB by {width} B{' to LDS' * lds}"
        for (width, lds), nbytes in sorted(widths.items(), reverse=True)
    )


def _against_floor(seconds: float, floor: float) -> str:
    return f"{seconds * 1e6:.1f} us, floor {floor * 1e6:.1f} us, share {floor / seconds:.2f}"


SHORT = "of each operation the case with the most rows, at TP 8 if there is one"
ROWS = re.compile(r"\b(?:rows|tokens)(\d+)")
"""Matches the number of rows in a case's name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    flags = _parse(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"  # The workers inherit it: no plugin looks for devices.
    asked = flags.arch or ARCHS
    archs = [arch for arch in asked if target_of(arch).is_installed()]
    if not archs or (flags.arch and archs != flags.arch):
        absent = dict.fromkeys(target_of(arch) for arch in asked if arch not in archs)
        print("\n".join(target.not_installed for target in absent), file=sys.stderr)
        return 2
    flags.arch = archs
    check = READ_KERNELS if flags.facts or flags.record else KERNELS
    jobs = list(check.build(flags))
    if not jobs:
        print("no case is called like that", file=sys.stderr)
        return 2
    begin = time.monotonic()
    found = check.results(jobs, flags.limit, flags.jobs)
    # A job that crashes or hangs has failed.
    results = [
        Checked(*job, (f"{result}",)) if isinstance(result, Failure) else result
        for job, result in zip(jobs, found, strict=True)
    ]
    console = console_of(240)
    if flags.facts:
        lines = [x for r in results if r.facts for x in facts_lines(r.facts, BY_ARCH[r.arch])]
        print_lines(console, lines)
    for target in () if flags.facts else TARGETS:
        if of_target := [result for result in results if target_of(result.arch) is target]:
            console.print(table(of_target, target))
            console.print(overview(of_target, target))
    print_lines(console, check.failures(jobs, results))
    console.print(summary(results, time.monotonic() - begin), markup=False)
    if flags.record:
        for arch in dict.fromkeys(result.arch for result in results):
            facts = [r.facts for r in results if r.arch == arch and r.facts]
            console.print(f"written: {write_record(arch, facts, flags.record)}", highlight=False)
    if flags.json:
        write_results(flags.json, results)
    return 1 if any(result.problems for result in results) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m eagle3_tools.aot", description=__doc__)
    parser.add_argument(
        "--arch",
        choices=ARCHS,
        action="append",
        help="architecture to compile for; default: all that the installed compilers support",
    )
    parser.add_argument(
        "--facts", action="store_true", help="print what the code does, and what the model predicts"
    )
    parser.add_argument(
        "--record",
        nargs="?",
        type=Path,
        const=FOLDER,
        metavar="FOLDER",
        help="write down the facts of the named cases, with which later checks compare; default: "
        "where they are read from",
    )
    parser.add_argument("--short", action="store_true", help=SHORT)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="cases whose name has TEXT in it"
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures there as JSON")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes; default: one per core",
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, metavar="S", help="seconds that a case may take"
    )
    return parser.parse_args(argv)


def chosen(
    cases: Sequence[Case], archs: Sequence[str], only: str, short: bool
) -> list[tuple[str, str]]:
    """Return (case name, architecture) pairs to compile."""
    return [
        (case.name, arch)
        for case in (cover(cases) if short else cases)
        for arch in archs
        if arch in case.matrix and only in case.name
    ]


def cover(cases: Sequence[Case]) -> list[Case]:
    """Return the short form: one case of each operation, as SHORT says."""
    operations: dict[str, list[Case]] = {}
    for case in cases:
        operations.setdefault(case.operation, []).append(case)
    return [
        max(alike, key=lambda case: (case.decode, case.shape.endswith("@tp8"), _rows(case)))
        for alike in operations.values()
    ]


def _rows(case: Case) -> int:
    said = ROWS.search(case.name)
    return int(said[1]) if said else 0


KERNELS = Check[tuple[str, str], Checked](
    name="Compiled kernels",
    build=lambda flags: chosen(
        named(all_cases()) if flags.record else all_cases(), flags.arch, flags.only, flags.short
    ),
    run=check_named,
    expect=lambda found: found.problems,
    label=" ".join,
    columns={},
    reuse=True,
)
READ_KERNELS = replace(KERNELS, run=read_named)
"""The same check, which also reads the facts of the kernels' code."""


if __name__ == "__main__":
    sys.exit(main())
