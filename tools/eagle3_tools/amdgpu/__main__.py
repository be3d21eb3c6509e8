"""python -m eagle3_tools.amdgpu: emulate operations compiled for MI355X and MI325X on this CPU.

Needs the extra `rocm-check`, gcc and binutils; no GPU and no ROCm. The exit status is 1 if a kernel
does something invalid or computes a wrong result.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from eagle3_tools.checks.check import console_of, table_of
from eagle3_tools.kernel_cases.case import AMD


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and return the exit status."""
    flags = _parse(argv)
    if find_spec("tinygrad") is None:
        print("tinygrad is not installed: pip install '.[rocm-check]'", file=sys.stderr)
        return 2
    os.environ["JAX_PLATFORMS"] = "cpu"  # For the workers: no plugin looks for devices.
    from eagle3_tools.amdgpu.jobs import PROGRAMS, run
    from eagle3_tools.amdgpu.report import opcode_table, summary, there, write_record
    from eagle3_tools.amdgpu.witness.table import MISSING, witness_of
    from eagle3_tools.aot import targets

    jobs = list(PROGRAMS.build(flags))
    if not jobs:
        print("no case is called like that", file=sys.stderr)
        return 2
    if not targets.AMD.is_installed():
        print(targets.AMD.not_installed, file=sys.stderr)
        return 2
    begin = time.monotonic()
    results = run(jobs, flags.jobs)
    console = console_of(160)
    executed = [result for result in results if result.launches or result.problems]
    left = ("case", "GPU", "")
    console.print(table_of(PROGRAMS.name, PROGRAMS.columns, executed, left=left, box=None))
    console.print(opcode_table(results, witness_of))
    console.print("\n".join(summary(results, time.monotonic() - begin)), markup=False)
    if flags.json:
        write_record(flags.json, results)
    alone = [name for name in sorted(there(results)) if witness_of(name) == f"none: {MISSING}"]
    if alone:
        print(f"without a second witness: {', '.join(alone)}")
    return 1 if alone or any(result.problems for result in results) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m eagle3_tools.amdgpu", description=__doc__)
    parser.add_argument("--arch", choices=AMD, action="append", help="default: both")
    parser.add_argument(
        "--short",
        action="store_true",
        help="one small case of each operation on gfx950, with one poison",
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="cases whose name has TEXT in it"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as JSON")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes; default: one per core",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
