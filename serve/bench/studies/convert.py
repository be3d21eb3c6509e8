"""Cost of eagle3-convert: memory, time against a copy on the same disk, and being killed."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from convert.store.groups import ITEM_BYTES
from convert.store.journal import JOURNAL_FILE
from convert.store.partial import partial_directory
from convert.store.reader import Store, open_store
from convert.store.verify import verify_store
from eagle3_jax.config import KimiConfig
from serve.bench.common.command import finish
from serve.bench.common.conditions import conditions, memory_mib
from serve.bench.common.flags import add_shared, check_flags, use_embedded_pair
from serve.bench.common.synthetic_int4 import WIDTHS, write_synthetic
from serve.pair.notices import Say

MIB = 2**20
COPY_BLOCK = 16 * MIB
LOOK_EVERY_S = 0.02
KILL_AT = (0.2, 0.5, 0.8)
"""Shares of the items that are on disk when a run is killed."""
REQUIRED_RATIO = 0.5
CONVERT = (
    sys.executable,
    "-c",
    "import sys; from convert.conversion.cli import main; sys.exit(main())",
)


@dataclass(frozen=True)
class ConvertRecord:
    """What was measured, in MiB and MiB/s of the source's bytes; copy and conversion alternate.

    peak_mib: largest resident set of a conversion (VmHWM). largest_item_mib: what it held at
    once. killed_at: items on disk at each kill -9. resumed_equal: whether the resumed store's
    checksums are those of an undisturbed one. sound: whether all was read back as written.
    """

    source_mib: float
    items: int
    largest_item_mib: float
    copy_mib_s: list[float]
    convert_mib_s: list[float]
    peak_mib: list[float]
    killed_at: list[int]
    resumed_equal: bool
    sound: bool

    @property
    def ratio(self) -> float:
        """Rate of all conversions over the rate of all copies."""
        return sum(1 / rate for rate in self.copy_mib_s) / sum(1 / r for r in self.convert_mib_s)

    @property
    def holds(self) -> bool:
        """Whether memory is the largest item and 1 GiB at most, and everything else is true."""
        bounded = max(self.peak_mib) <= self.largest_item_mib + 1024
        return bounded and self.ratio >= REQUIRED_RATIO and self.resumed_equal and self.sound


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Size, disk and repetitions."""
    use_embedded_pair(parser)
    parser.set_defaults(check=_check)
    parser.add_argument("--gib", type=float, default=4.0, help="GiB of the synthetic checkpoint")
    parser.add_argument(
        "--directory", metavar="DIR", default=".", help="on the disk to measure; 3.5 times the size"
    )
    add_shared(parser, "--repetitions", default=3)
    add_shared(parser, "--json")


def _check(flags: argparse.Namespace) -> None:
    if flags.gib <= 0:
        raise ValueError(f"--gib must be positive; got {flags.gib}")
    check_flags(flags)


def run(flags: argparse.Namespace, console: Console) -> int:
    """Measures a conversion and a plain copy."""
    found, say = conditions(), Console(stderr=True).print
    nbytes = int(flags.gib * 2**30)
    result = measure_conversion(Path(flags.directory), nbytes, flags.repetitions, say)
    print_result(console, result)
    return finish(flags, "convert", found, result)


def print_result(console: Console, result: ConvertRecord) -> None:
    """Speed, memory and what became of the run that was killed."""
    rates = (result.copy_mib_s, result.convert_mib_s)
    copy, conversion = (", ".join(f"{rate:.0f}" for rate in each) for each in rates)
    console.print(f"{result.source_mib:.0f} MiB of INT4 in {result.items} items")
    console.print(f"copy {copy} MiB/s, conversion {conversion} MiB/s: ratio {result.ratio:.2f}")
    peak, largest = max(result.peak_mib), result.largest_item_mib
    console.print(f"peak memory {peak:.0f} MiB, largest item {largest:.0f} MiB")
    killed = ", ".join(map(str, result.killed_at))
    equal = "equal" if result.resumed_equal else "DIFFERENT"
    read_back = "read back as written" if result.sound else "NOT READ BACK AS WRITTEN"
    console.print(f"killed with {killed} items on disk: manifests {equal}, {read_back}")


def measure_conversion(
    directory: Path,
    nbytes: int,
    repetitions: int,
    say: Say,
    *,
    widths: KimiConfig = WIDTHS,
    item_bytes: int = ITEM_BYTES,
) -> ConvertRecord:
    """Makes a checkpoint of about `nbytes` below `directory`, which needs 3.5 times the space."""
    with TemporaryDirectory(dir=directory) as folder:
        source, made, resumed = (Path(folder) / name for name in ("source", "made", "resumed"))
        size_mib = write_synthetic(source, nbytes, widths) / MIB
        say(f"source of {size_mib:.0f} MiB written")
        flags = ("--item-mib", str(item_bytes // MIB))
        copies, conversions, peaks = [], [], []
        for _ in range(repetitions):
            copies.append(size_mib / _copy_s(source, Path(folder) / "copy"))
            shutil.rmtree(made, ignore_errors=True)
            seconds, peak_mib = _convert(source, made, flags)
            conversions.append(size_mib / seconds)
            peaks.append(peak_mib)
            say(
                f"copy {copies[-1]:.0f}, conversion {conversions[-1]:.0f} MiB/s, {peak_mib:.0f} MiB"
            )
        store = open_store(made)
        killed_at = _kill_and_resume(source, resumed, flags, store, say)
        return ConvertRecord(
            source_mib=round(size_mib, 1),
            items=store.manifest.totals["items"],
            largest_item_mib=round(_largest_item(store) / MIB, 1),
            copy_mib_s=copies,
            convert_mib_s=conversions,
            peak_mib=peaks,
            killed_at=killed_at,
            resumed_equal=open_store(resumed).manifest.parameters == store.manifest.parameters,
            sound=verify_store(resumed).sound,
        )


def _copy_s(source: Path, destination: Path) -> float:
    """Seconds to read a directory that is not in the page cache and have its copy on disk."""
    _forget(source)
    start_s = time.monotonic()
    destination.mkdir()
    for file in sorted(source.iterdir()):
        with file.open("rb") as read, (destination / file.name).open("wb") as written:
            shutil.copyfileobj(read, written, COPY_BLOCK)
            written.flush()
            os.fsync(written.fileno())
    seconds = time.monotonic() - start_s
    shutil.rmtree(destination)
    return seconds


def _convert(source: Path, destination: Path, flags: Sequence[str]) -> tuple[float, float]:
    """Seconds, start of the process included, and peak resident MiB of one conversion."""
    _forget(source)
    start_s = time.monotonic()
    peak_mib = 0.0
    with _converting(source, destination, flags) as process:
        while process.poll() is None:
            peak_mib = max(peak_mib, memory_mib(process.pid, "VmHWM"))
            time.sleep(LOOK_EVERY_S)
    if process.returncode:
        raise ValueError(f"eagle3-convert ended with status {process.returncode}")
    return time.monotonic() - start_s, peak_mib


def _kill_and_resume(
    source: Path, destination: Path, flags: Sequence[str], store: Store, say: Say
) -> list[int]:
    items = store.manifest.totals["items"]
    killed_at = []
    for share in KILL_AT:
        with _converting(source, destination, flags) as process:
            while _finished(destination) < share * items and process.poll() is None:
                time.sleep(0.01)
            process.kill()
        killed_at.append(_finished(destination))
        say(f"killed with {killed_at[-1]} of {items} items on disk")
    _convert(source, destination, flags)
    return killed_at


def _finished(destination: Path) -> int:
    """Items in the journal of an unfinished store."""
    journal = partial_directory(destination) / JOURNAL_FILE
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.is_file() else 0


def _converting(source: Path, destination: Path, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [*CONVERT, str(source), str(destination), *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _forget(directory: Path) -> None:
    """Drops the files from the page cache, where the system can, once they are on disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in directory.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _largest_item(store: Store) -> int:
    sizes = Counter[str]()
    for parameter in store.parameters.values():
        sizes[parameter.item] += parameter.nbytes
    return max(sizes.values())
