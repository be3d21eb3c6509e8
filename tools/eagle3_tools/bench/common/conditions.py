"""Conditions of a measurement (machine, load, versions), and pinning to a core."""

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console

PACKAGES = ("eagle3-jax", "jax", "jaxlib", "flax", "numpy", "torch", "transformers")


@dataclass(frozen=True)
class Conditions:
    """What a reader needs to judge or repeat a record.

    pinned_core: the one core everything ran on, None when the scheduler was left free.
    load_average: of the last minute, before the start: above 0.5 the figures are noise.
    """

    date: str
    cpu: str
    cores: int
    pinned_core: int | None
    load_average: float
    python: str
    system: str
    versions: dict[str, str]

    def print_to(self, console: Console, repetitions: int) -> None:
        """Where and when, in two lines."""
        core = "not pinned" if self.pinned_core is None else f"pinned to core {self.pinned_core}"
        where = f"{self.cpu}, {self.cores} cores, {core}, load {self.load_average}"
        console.print(f"{where}, median of {repetitions}")
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        console.print(f"{self.date}, Python {self.python}, {versions}")


def allowed_cores() -> list[int]:
    """The cores this process may use; empty where the system can't say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pin(core: int | None) -> int | None:
    """Keeps this process on one core, by default the last it may use; returns the core.

    To be called before JAX and torch start their threads: both size their pools by it. Raises
    ValueError for a core that is not this process's. Without effect where the system can't.
    """
    allowed = allowed_cores()
    if not allowed:
        return None
    chosen = allowed[-1] if core is None else core
    if chosen not in allowed:
        raise ValueError(f"core must be one of {allowed}, got {core}")
    os.sched_setaffinity(0, {chosen})
    os.environ["OMP_NUM_THREADS"] = "1"
    return chosen


def move_host(allowed: Sequence[int], device_core: int | None) -> int | None:
    """Moves the calling thread off the device's core, where it may; returns its core.

    To be called once JAX has started: its threads stay where they are. Then one core computes and
    one schedules, which is what dispatching ahead is for.
    """
    others = [core for core in allowed if core != device_core]
    if device_core is None or not others:
        return device_core
    os.sched_setaffinity(0, {others[-1]})
    return others[-1]


def conditions(pinned_core: int | None = None) -> Conditions:
    """The conditions now."""
    return Conditions(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        pinned_core=pinned_core,
        load_average=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions={name: found for name in PACKAGES if (found := _version(name))},
    )


def memory_mib(pid: int, name: str) -> float:
    """VmRSS, what a process has in memory, or VmHWM, the most it ever had; 0 once it has ended.

    Not ru_maxrss, which a child starts with its parent's value of.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    found = re.search(rf"^{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in named.items()}
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    family, model = fields.get("cpu family", "?"), fields.get("model", "?")
    return f"{fields['model name']} (family {family}, model {model})"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
