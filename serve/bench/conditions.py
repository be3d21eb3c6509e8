"""Under what conditions a figure was taken, and the one that we set ourselves: the core."""

import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


def pin(core: int | None) -> int | None:
    """Keeps this process on one core, by default the last it may use; returns the core.

    To be called before JAX and torch start their threads: both size their pools by it. Raises
    ValueError for a core that is not this process's. Without effect where the system can't.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    allowed = sorted(os.sched_getaffinity(0))
    chosen = allowed[-1] if core is None else core
    if chosen not in allowed:
        raise ValueError(f"core must be one of {allowed}, got {core}")
    os.sched_setaffinity(0, {chosen})
    os.environ["OMP_NUM_THREADS"] = "1"
    return chosen


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
