"""Conditions of a measurement (machine, load, versions), and pinning to a CPU core."""

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from eagle3_tools.checks.record import commit, versions

PACKAGES = ("eagle3-jax", "jax", "jaxlib", "flax", "numpy", "torch", "transformers")


@dataclass(frozen=True)
class Conditions:
    """Conditions that a reader needs to judge or repeat a measurement.

    `pinned_core` is the one core that everything ran on, or None. `load_average` is that of the
    minute before the start; above 0.5 the figures are noise.
    """

    date: str
    cpu: str
    cores: int
    pinned_core: int | None
    load_average: float
    python: str
    system: str
    versions: dict[str, str]
    commit: str | None = None

    def print_to(self, console: Console, repetitions: int) -> None:
        """Print machine and versions in two lines."""
        core = "not pinned" if self.pinned_core is None else f"pinned to core {self.pinned_core}"
        where = f"{self.cpu}, {self.cores} cores, {core}, load {self.load_average}"
        console.print(f"{where}, median of {repetitions}")
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        console.print(f"{self.date}, Python {self.python}, {versions}")


def allowed_cores() -> list[int]:
    """Return the cores this process may use; empty if the system does not report them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pin(core: int | None, threads: int = 1) -> int | None:
    """Pin this process to the last of `threads` cores that it may use, and return that core.

    Call it before JAX and torch start their threads: both size their pools by it. It has no effect
    on a system without affinity. Raises ValueError for cores that this process may not use.
    """
    allowed = allowed_cores()
    if not allowed:
        return None
    if threads > len(allowed) or (threads > 1 and core is not None):
        raise ValueError(
            f"--cpu-threads must be at most the {len(allowed)} cores that this process may use, "
            f"and 1 with --core; got {threads}"
        )
    chosen = allowed[-1] if core is None else core
    if chosen not in allowed:
        raise ValueError(f"core must be one of {allowed}, got {core}")
    os.sched_setaffinity(0, {*allowed[-threads:]} if threads > 1 else {chosen})
    os.environ["OMP_NUM_THREADS"] = f"{threads}"
    return chosen


def move_host(allowed: Sequence[int], device_core: int | None) -> int | None:
    """Move the calling thread off the device's core, if another is allowed; return its core.

    Call it after JAX has started, whose threads stay where they are. One core then computes and one
    schedules, as dispatching ahead needs.
    """
    others = [core for core in allowed if core != device_core]
    if device_core is None or not others:
        return device_core
    os.sched_setaffinity(0, {others[-1]})
    return others[-1]


def conditions(pinned_core: int | None = None) -> Conditions:
    return Conditions(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        pinned_core=pinned_core,
        load_average=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions=versions(PACKAGES),
        commit=commit(),
    )


def memory_mib(pid: int, name: str) -> float:
    """Return a process's VmRSS (resident) or VmHWM (peak resident) in MiB; 0 once it has ended.

    ru_maxrss is no alternative: a child starts with its parent's value.
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
