"""How fast a target's published files become device arrays, beside a plain read of the same bytes.

Cold: the kernel is asked to drop the files' pages before; warm: they were just read. A plain read
goes through all files once into one block of host memory. All are repeated in turn, so that other
work on the machine slows each of them.
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
from serve.text_table import text_table

MIB = 2**20
BLOCK = 16 * MIB


@dataclass(frozen=True)
class LoadResult:
    """MiB/s of the files' bytes, each run; plain_* of the reads beside them."""

    mib: float
    cold: list[float]
    plain_cold: list[float]
    warm: list[float]
    plain_warm: list[float]


def measure_load(model: Path, repetitions: int) -> LoadResult:
    """Of a directory of safetensors files; ValueError for one without."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise ValueError(f"expected a published checkpoint; {model} has no safetensors file")
    mib = sum(file.stat().st_size for file in files) / MIB

    def load() -> None:
        # Filling waits for each parameter.
        load_target(model)

    plain = partial(_read, files)
    ways = [(work, cold) for cold in (True, False) for work in (load, plain)]
    rates: list[list[float]] = [[] for _ in ways]
    load()  # What is compiled for once is no part of it.
    for _ in range(repetitions):
        for (work, cold), found in zip(ways, rates, strict=True):
            found.append(mib / _seconds(work, files, cold=cold))
    return LoadResult(mib, *rates)


def print_load(console: Console, result: LoadResult) -> None:
    """A row for cold and warm: medians, and the share of a plain read."""
    columns = ("", "loaded MiB/s", "plain read MiB/s", "share")
    table = text_table(f"Loading {result.mib:.0f} MiB", columns, ("",))
    both = {"cold": (result.cold, result.plain_cold), "warm": (result.warm, result.plain_warm)}
    for name, (loaded, plain) in both.items():
        share = median(loaded) / median(plain)
        table.add_row(name, f"{median(loaded):.0f}", f"{median(plain):.0f}", f"{share:.2f}")
    console.print(table)


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
    """Files that nobody has changed lately: pages that are not written yet stay."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
