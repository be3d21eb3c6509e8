"""Tuner: tries tiles near the heuristic's on the GPU and keeps faster ones."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from rich.console import Console

from eagle3_tools.checks.pool import Failure, run_each
from eagle3_tools.kernel_bench.ahead import THREADS
from eagle3_tools.kernel_bench.measure import largest_error
from eagle3_tools.kernel_bench.timing import (
    Chain,
    Effort,
    Programs,
    compile_chain,
    nbytes_of,
    rotated,
)
from eagle3_tools.kernel_bench.worker import NO_GPU, conditions
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import Case
from pallas_kernels import gpu, tuning

ENOUGH = 0.97
"""Largest fraction of the heuristic's time that counts as faster: less than 3% is noise."""
_EFFORT = Effort(samples=7)
TileKey = tuple[str, str]
"""Operation and key, as passed to `tuning.tuned`."""


@dataclass(frozen=True)
class Tuned:
    """Tiles found for one choice of `tuning.tuned`, with their time and the heuristic's."""

    choice: TileKey
    tiles: Mapping[str, int]
    us: float
    heuristic_us: float


def tune_all(names: Sequence[str], until: float, limit_s: float, console: Console) -> int:
    """Tune each case in a worker and write its choices when it ends. Start none after `until`.
    Returns the exit status, 2 without a GPU."""
    jobs = [(name, until) for name in names]
    results = run_each(tune_named, jobs, processes=1, limit_s=limit_s)
    for name, result in zip(names, results, strict=True):
        if isinstance(result, Failure):
            console.print(f"{name}: {result.reason}", markup=False)
            if NO_GPU in result.reason:
                return 2
            continue
        arch, found, made = result
        if found:
            write_tuned(arch, found, made)
        console.print(f"{name}: {len(found)} choices better than the heuristic's", markup=False)
    return 0


def tune_named(job: tuple[str, float]) -> tuple[str, list[Tuned], dict[str, Any]]:
    """Tune the case of this name in a worker; return architecture, choices found and conditions.
    Raises RuntimeError without a GPU."""
    if jax.default_backend() == "cpu":
        raise RuntimeError(NO_GPU)
    name, until = job
    (case,) = (case for case in all_cases() if case.name == name)
    return gpu.current().arch, tune(case, until), conditions()


def tune(case: Case, until: float = float("inf")) -> list[Tuned]:
    """Tune each of the case's choices in turn, keeping the others as they are. Continues from the
    best tiles while something is faster, until the `time.time()` of `until`."""
    arguments = case.example(0)
    chain = Chain.of(nbytes_of(arguments), _EFFORT)
    sets = rotated(arguments, chain.copies)
    with tuning.trying({}) as asked:
        heuristic = compile_chain(case.run, arguments, chain)
    heuristic_us = heuristic.time(sets, _EFFORT).us.median
    wanted = heuristic.alone(*arguments)
    found = []
    for choice, tiles in asked.items():
        best, tried = Tuned(choice, tiles, heuristic_us, heuristic_us), [tiles]
        while time.time() < until:
            candidates = [tiles for tiles in around(best.tiles) if tiles not in tried]
            tried += candidates
            compiled = _compile_each(case, chain, arguments, choice, candidates)
            times = {
                programs.time(sets, _EFFORT).us.median: tiles
                for tiles, programs in compiled
                if largest_error(programs.alone(*arguments), wanted) <= case.tolerance
            }
            if not times or min(times) >= ENOUGH * best.us:
                break
            best = replace(best, tiles=times[min(times)], us=min(times))
        if best.us < heuristic_us:
            found.append(best)
    return found


def _compile_each(
    case: Case, chain: Chain, arguments: Any, choice: TileKey, candidates: Sequence[dict[str, int]]
) -> list[tuple[dict[str, int], Programs]]:
    """Return the tiles that compile, with their programs. Most tiles do not fit."""

    def compile(tiles: dict[str, int]) -> Programs | None:
        try:
            with tuning.trying({choice: tiles}):
                return compile_chain(partial(case.run), arguments, chain)
        except Exception:
            return None

    with ThreadPoolExecutor(THREADS) as pool:
        compiled = zip(candidates, pool.map(compile, candidates), strict=True)
        return [(tiles, programs) for tiles, programs in compiled if programs is not None]


def around(tiles: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the tiles with one number halved or doubled."""
    for name, value in tiles.items():
        for other in (value // 2, value * 2):
            if other >= 1 and isinstance(value, int) and not isinstance(value, bool):
                yield {**tiles, name: other}


def write_tuned(arch: str, found: list[Tuned], conditions: Mapping[str, Any]) -> None:
    """Write choices to `tuned/<arch>.json`, replacing earlier entries for them."""
    path = tuning.FOLDER / f"{arch}.json"
    path.parent.mkdir(exist_ok=True)
    before = json.loads(path.read_text(encoding="utf-8"))["tiles"] if path.exists() else {}
    for entry in found:
        operation, key = entry.choice
        before.setdefault(operation, {})[key] = {
            "tiles": dict(entry.tiles),
            "us": entry.us,
            "heuristic_us": entry.heuristic_us,
        }
    record = {**conditions, "tiles": before}
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    tuning.measured.cache_clear()
