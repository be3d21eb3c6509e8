"""How fast a target's published files become device arrays, beside a plain read of the same bytes.

Cold: the kernel is asked to drop the files' pages before; warm: they were just read. A plain read
goes through all files once into one block of host memory. All are repeated in turn, so that what
else the machine does falls on each of them.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from convert import load_target
from convert.hub.checkpoint import find_checkpoint
from convert.hub.flags import source_of
from eagle3_jax.mesh import make_mesh
from serve.bench.common.command import finish
from serve.bench.common.conditions import conditions
from serve.bench.common.flags import add_pair_flags, add_shared
from serve.demo import demo_target_dir
from serve.text_table import text_table

MIB = 2**20
BLOCK = 16 * MIB
REQUIRED_RATIO = 0.7


@dataclass(frozen=True)
class LoadRecord:
    """MiB/s of the files' bytes, each run; plain_* of the reads beside them."""

    mib: float
    devices: int
    cold: list[float]
    plain_cold: list[float]
    warm: list[float]
    plain_warm: list[float]

    @property
    def holds(self) -> bool:
        """Whether loads reach the share of a plain read that they must, cold and warm."""
        both = (self.cold, self.plain_cold), (self.warm, self.plain_warm)
        return all(median(one) >= REQUIRED_RATIO * median(plain) for one, plain in both)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The target, over how many devices, how often."""
    add_pair_flags(parser, draft=False, load=False)
    parser.set_defaults(check=_check)
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="that share the target")
    add_shared(parser, "--repetitions", default=3)


def _check(flags: argparse.Namespace) -> None:
    if flags.repetitions < 1:
        raise ValueError(f"--repetitions must be at least 1; got {flags.repetitions}")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Measures, and prints a table."""
    found = conditions()
    model = demo_target_dir()
    if flags.model is not None:
        model = find_checkpoint(source_of(flags, flags.model, flags.revision))
    result = measure_load(model, flags.devices, flags.repetitions)
    print_result(console, result)
    return finish(flags, "load", found, result)


def measure_load(model: Path, devices: int, repetitions: int) -> LoadRecord:
    """Of a directory of safetensors files; ValueError for one without, or too few devices."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise ValueError(f"expected a published checkpoint; {model} has no safetensors file")
    mesh = make_mesh(devices) if devices > 1 else None
    mib = sum(file.stat().st_size for file in files) / MIB

    def load() -> None:
        # Filling waits for each parameter.
        load_target(model, mesh=mesh)

    plain = partial(_read, files)
    ways = [(work, cold) for cold in (True, False) for work in (load, plain)]
    rates: list[list[float]] = [[] for _ in ways]
    load()  # What is compiled for once is no part of it.
    for _ in range(repetitions):
        for (work, cold), found in zip(ways, rates, strict=True):
            found.append(mib / _seconds(work, files, cold=cold))
    return LoadRecord(mib, devices, *rates)


def print_result(console: Console, result: LoadRecord) -> None:
    """A row for cold and warm: medians, and the share of a plain read."""
    columns = ("", "loaded MiB/s", "plain read MiB/s", "share")
    table = text_table(f"{result.mib:.0f} MiB on {result.devices} devices", columns, ("",))
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
