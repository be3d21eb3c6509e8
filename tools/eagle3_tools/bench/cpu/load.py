"""Compare the time to load a published target with a plain read of the same bytes.

Cold: the kernel is asked to drop the files' pages before. Warm: the files were just read. A plain
read goes through all files once into one block of host memory. All are repeated in turn, so that
other work on the machine slows each of them.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from convert import load_target
from eagle3_tools.checks.check import table_of

MIB = 2**20
BLOCK = 16 * MIB


@dataclass(frozen=True)
class LoadResult:
    """MiB/s of the files' bytes in each run; `plain_*` of the plain reads."""

    mib: float
    cold: list[float]
    plain_cold: list[float]
    warm: list[float]
    plain_warm: list[float]


def measure_load(model: Path, repetitions: int) -> LoadResult:
    """Measure a directory of safetensors files; raise ValueError if it has none."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise ValueError(f"expected a published checkpoint; {model} has no safetensors file")
    mib = sum(file.stat().st_size for file in files) / MIB

    def load() -> None:
        # `load_target` waits for each parameter.
        load_target(model)

    plain = partial(_read, files)
    ways = [(work, cold) for cold in (True, False) for work in (load, plain)]
    rates: list[list[float]] = [[] for _ in ways]
    load()  # Compile outside the measurement.
    for _ in range(repetitions):
        for (work, cold), found in zip(ways, rates, strict=True):
            found.append(mib / _seconds(work, files, cold=cold))
    return LoadResult(mib, *rates)


def print_load(console: Console, result: LoadResult) -> None:
    """Print a row for cold and one for warm: medians, and the ratio to a plain read."""
    both = (
        ("cold", median(result.cold), median(result.plain_cold)),
        ("warm", median(result.warm), median(result.plain_warm)),
    )
    columns = {
        "": lambda row: row[0],
        "loaded MiB/s": lambda row: f"{row[1]:.0f}",
        "plain read MiB/s": lambda row: f"{row[2]:.0f}",
        "share": lambda row: f"{row[1] / row[2]:.2f}",
    }
    console.print(table_of(f"Loading {result.mib:.0f} MiB", columns, both, left=("",)))


def _seconds(work: Callable[[], None], files: Sequence[Path], *, cold: bool) -> float:
    if cold:
        _forget(files)
    else:
        _read(files)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _read(files: Sequence[Path]) -> None:
    block = bytearray(BLOCK)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def _forget(files: Sequence[Path]) -> None:
    """Ask the kernel to drop the files' pages. Pages that are not written back yet stay."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
