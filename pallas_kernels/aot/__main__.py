"""python -m pallas_kernels.aot: every kernel at every named shape through XLA's ROCm compiler.

Needs the extra `rocm`, gcc and binutils; no GPU and no ROCm. Exit status 1 where a kernel is not
what it must be.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from pallas_kernels.all_cases import all_cases
from pallas_kernels.aot.check import Checked, check_named
from pallas_kernels.aot.compile import NOT_INSTALLED, rocm_is_installed
from pallas_kernels.aot.report import overview, summary, table, write_json
from pallas_kernels.aot.workers import Failure, run_each
from pallas_kernels.case import ARCHS, Case

FILE_WIDTH = 200
SHORT = (
    "of the decode steps that differ only in their rows: the fewest and the most at TP 8, "
    "the most at TP 4"
)
"""What the short form compiles."""
ROWS = re.compile(r"\b(?:rows|tokens)(\d+)")
"""How many rows, in the name of a case."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    flags = _parse(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"  # The workers inherit it: no plugin looks for devices.
    jobs = chosen(all_cases(), flags.arch or ARCHS, flags.only, flags.short)
    if not jobs:
        print("no case is called like that", file=sys.stderr)
        return 2
    if not rocm_is_installed():
        print(NOT_INSTALLED, file=sys.stderr)
        return 2
    begin = time.monotonic()
    results = list(run(jobs, flags.jobs, flags.limit))
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    console.print(table(results))
    console.print(overview(results))
    console.print("\n".join(summary(results, time.monotonic() - begin)), markup=False)
    if flags.json:
        write_json(flags.json, results)
    return 1 if any(result.problems for result in results) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.aot", description=__doc__)
    parser.add_argument("--arch", choices=ARCHS, action="append", help="default: both")
    parser.add_argument("--short", action="store_true", help=SHORT)
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="cases whose name has TEXT in it"
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure there")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="default: one a core"
    )
    parser.add_argument("--limit", type=float, default=120.0, metavar="S", help="for one case")
    return parser.parse_args(argv)


def chosen(
    cases: Sequence[Case], archs: Sequence[str], only: str, short: bool
) -> list[tuple[str, str]]:
    """Names and architectures to compile for."""
    return [
        (case.name, arch)
        for case in (cover(cases) if short else cases)
        for arch in archs
        if arch in case.matrix and only in case.name
    ]


def cover(cases: Sequence[Case]) -> list[Case]:
    """The short form: see SHORT. Every operation, weight and format of a decode step is in it."""
    alike: dict[str, list[Case]] = {}
    for case in cases:
        if case.decode and not case.shape.endswith("@tp1"):
            alike.setdefault(ROWS.sub("", case.name), []).append(case)
    found: list[Case] = []
    for group in alike.values():
        fewest, most = min(group, key=_rows), max(group, key=_rows)
        both = fewest is not most and most.shape.endswith("@tp8")
        found += [fewest, most] if both else [most]
    return found


def _rows(case: Case) -> int:
    said = ROWS.search(case.name)
    return int(said[1]) if said else 0


def run(jobs: Sequence[tuple[str, str]], processes: int, limit_s: float) -> list[Checked]:
    """Checks every job; one that crashes or hangs is a failed one."""
    results = run_each(check_named, jobs, processes=processes, limit_s=limit_s)
    return [
        Checked(*job, (f"{result.reason} {result.said}".strip(),))
        if isinstance(result, Failure)
        else result
        for job, result in zip(jobs, results, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
