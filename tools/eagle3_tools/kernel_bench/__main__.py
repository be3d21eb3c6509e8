"""python -m eagle3_tools.kernel_bench: measure the GPU's ceilings, then kernels and their peers.

Made for a GPU that is available for minutes: each finished case is a line of `--json`, a case that
crashes or hangs loses only itself, and `--carry` writes the files for a machine without a network.
`--dry-run` runs everything on a CPU, interpreted and at small sizes; its times are meaningless.
`--tune` tries other tiles instead and keeps the faster ones.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from pkgutil import walk_packages

import jax

from eagle3_tools import kernel_bench
from eagle3_tools.checks.check import console_of, print_lines
from eagle3_tools.checks.record import Record
from eagle3_tools.kernel_bench.carry import carry
from eagle3_tools.kernel_bench.cases import in_turn, named, rehearsed
from eagle3_tools.kernel_bench.session import Session
from eagle3_tools.kernel_bench.tune import tune_all
from eagle3_tools.kernel_bench.worker import use_gpu_sparingly
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_model import named as of_model


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a result is wrong or a case failed, 2 without a GPU."""
    flags = _parse(argv)
    console = console_of(170)
    if flags.carry:
        name = kernel_bench.__name__
        modules = [one.name for one in walk_packages(kernel_bench.__path__, f"{name}.")]
        packages = ["pallas_kernels", "eagle3_tools"]
        carried = carry(Path(flags.carry), name, packages, modules)
        print_lines(console, carried)
        return 0
    # The workers use the GPU; a context in this process would only take memory from them.
    jax.config.update("jax_platforms", "cpu")
    use_gpu_sparingly(dry_run=flags.dry_run)
    cases = _cases(flags)
    if not cases:
        print(f"no case has {' or '.join(flags.only)} in its name", file=sys.stderr)
        return 2
    until = time.time() + flags.budget
    if flags.tune:
        return tune_all([case.name for case in cases], until, flags.limit, console)
    record = Record(Path(flags.json) if flags.json else None)
    with_peers = not flags.recorded
    session = Session(console, record, cases, dry_run=flags.dry_run, with_peers=with_peers)
    return session.run(until, flags.limit, resume=flags.resume, crash=flags.crash)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -P -m eagle3_tools.kernel_bench", description=__doc__
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="test the command on a CPU; measure nothing"
    )
    parser.add_argument(
        "--crash", metavar="TEXT", help="in a dry run, end the process of cases with TEXT in them"
    )
    parser.add_argument(
        "--tune", action="store_true", help="write pallas_kernels/tuned/<arch>.json"
    )
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--all", action="store_true", help="every case, not only the named 25")
    chosen.add_argument(
        "--recorded",
        action="store_true",
        help="the cases that the kernel model predicts, without peers",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help="cases whose name has TEXT in it; may be repeated",
    )
    parser.add_argument(
        "--budget", type=float, default=420.0, metavar="S", help="seconds in which cases begin"
    )
    parser.add_argument(
        "--limit", type=float, default=90.0, metavar="S", help="seconds that a case may take"
    )
    parser.add_argument("--json", metavar="FILE", help="a JSON line for each case as it ends")
    parser.add_argument(
        "--resume", action="store_true", help="skip cases whose results are in FILE"
    )
    parser.add_argument(
        "--carry", metavar="DIR", help="write source and wheels for a machine without a network"
    )
    flags = parser.parse_args(argv)
    if flags.resume and not flags.json:
        parser.error("--resume goes on with a record: name it with --json FILE")
    if flags.tune and flags.dry_run:
        parser.error("--tune measures a GPU: leave --dry-run out")
    if flags.crash is not None and not flags.dry_run:
        parser.error("--crash rehearses a crash: it needs --dry-run")
    return flags


def _cases(flags: argparse.Namespace) -> list[Case]:
    if flags.dry_run:
        found = rehearsed()
    elif flags.recorded:
        found = in_turn(of_model.named(all_cases()))
    else:
        found = in_turn(all_cases()) if flags.all or flags.tune else named(all_cases())
    return [case for case in found if any(text in case.name for text in flags.only or [""])]


if __name__ == "__main__":
    sys.exit(main())
