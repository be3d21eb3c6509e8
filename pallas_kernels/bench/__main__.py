"""python -m pallas_kernels.bench: ceilings, then every operation beside its peers, on this GPU.

`--dry-run` goes through all of it on a CPU, interpreted and on the smallest cases; its times mean
nothing. `--tune` tries other tiles instead and keeps the faster ones.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from pallas_kernels import gpu
from pallas_kernels.all_cases import all_cases
from pallas_kernels.bench.bars import bars
from pallas_kernels.bench.ceilings import Ceilings, measure_ceilings
from pallas_kernels.bench.measure import Measured, measure
from pallas_kernels.bench.report import print_bars, print_ceilings, print_measured
from pallas_kernels.bench.timing import SAMPLES
from pallas_kernels.bench.tune import tune, write_tuned
from pallas_kernels.case import Case

FILE_WIDTH = 170
DRY_BYTES = 64 << 20
"""Most bytes of arguments of a case in a dry run."""
_PACKAGES = ("jax", "jaxlib", "jax-rocm7-plugin", "jax-cuda13-plugin", "torch", "triton")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where a result is wrong, 2 without a GPU."""
    flags = _parse(argv)
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu and not flags.dry_run:
        print(
            "this measures a GPU, and JAX has found none; --dry-run goes without", file=sys.stderr
        )
        return 2
    cases = [case for case in in_turn(all_cases()) if flags.only in case.name]
    cases = smallest(cases) if flags.dry_run else cases
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    if flags.tune:
        return _tune(cases, flags.budget, console)
    samples = 2 if flags.dry_run else SAMPLES
    ceilings = measure_ceilings(
        1 << (22 if flags.dry_run else 33), 256 if flags.dry_run else 8192, samples
    )
    print_ceilings(console, ceilings)
    results = _within(flags.budget, cases, ceilings, samples, console)
    if late := sum(result.refused.startswith("not begun") for result in results):
        console.print(f"{late} of {len(results)} cases were not begun within {flags.budget:g} s")
    met = bars(results)
    print_bars(console, met, dry_run=flags.dry_run)
    if flags.json:
        record = {
            **conditions(),
            "dry_run": flags.dry_run,
            "ceilings": asdict(ceilings),
            "results": [asdict(result) for result in results],
            "bars": [{**asdict(bar), "met": bar.met} for bar in met],
        }
        Path(flags.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any(result.timed and not result.right for result in results) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.bench", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on a CPU; proves the command alone")
    parser.add_argument(
        "--tune", action="store_true", help="write pallas_kernels/tuned/<arch>.json"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="cases whose name has TEXT in it"
    )
    parser.add_argument(
        "--budget", type=float, default=420.0, metavar="S", help="begin no case later"
    )
    parser.add_argument("--json", metavar="FILE", help="write the record there")
    return parser.parse_args(argv)


def in_turn(cases: Sequence[Case]) -> list[Case]:
    """The operations take turns, decode steps and four devices first: a budget cuts all alike."""
    rank: dict[str, int] = {}
    keyed = []
    for case in sorted(cases, key=lambda c: (not c.decode, "@tp4" not in c.shape)):
        rank[case.operation] = rank.get(case.operation, 0) + 1
        keyed.append((rank[case.operation], len(keyed), case))
    return [case for _, _, case in sorted(keyed, key=lambda entry: entry[:2])]


def smallest(cases: Sequence[Case]) -> list[Case]:
    """Of every operation the case with the fewest bytes of arguments, if they are few."""
    found: dict[str, tuple[int, Case]] = {}
    for case in cases:
        leaves = jax.tree.leaves(jax.eval_shape(lambda case=case: case.example(0)))
        nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
        if nbytes < min(DRY_BYTES, found.get(case.operation, (DRY_BYTES, case))[0]):
            found[case.operation] = nbytes, case
    return [case for _, case in found.values()]


def _within(
    budget_s: float, cases: Sequence[Case], ceilings: Ceilings, samples: int, console: Console
) -> list[Measured]:
    end, results = time.monotonic() + budget_s, []
    for case in cases:
        late = time.monotonic() > end
        none = Measured(case.name, case.operation, refused=f"not begun within {budget_s:g} s")
        results.append(none if late else measure(case, ceilings, samples))
        if not late:
            print_measured(console, results[-1])
    return results


def _tune(cases: Sequence[Case], budget_s: float, console: Console) -> int:
    end, found = time.monotonic() + budget_s, []
    for case in cases:
        if time.monotonic() < end:
            found += tune(case)
            console.print(f"{case.name}: {len(found)} choices better than the heuristic's so far")
    write_tuned(gpu.current().arch, found, conditions())
    return 0


def conditions() -> dict[str, Any]:
    """Device, date and versions."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    device = jax.devices()[0]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    arch = gpu.current().arch
    return {"device": device.device_kind, "arch": arch, "date": now, "versions": versions}


if __name__ == "__main__":
    sys.exit(main())
