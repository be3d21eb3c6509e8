"""Count the programs, kernels and copies that a function launches, with JAX's profiler."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

PROGRAMS = ("_round", "_prefill")
"""The engine's compiled functions."""
_EXECUTED = re.compile(r"LoadedExecutable::ExecuteHelper")
_CALLED = re.compile(r"PjitFunction\((?:jit\()?([^()]+)")
_COPIES = re.compile(r"Memcpy|Memset", re.IGNORECASE)
UNNAMED = "of no program"


@dataclass(frozen=True)
class Launched:
    """Programs run, the JAX functions that `called` them, and kernels by program.

    `copies` counts copies outside of programs, `busy_us` is the time of all device events. Kernels
    and copies are empty on a CPU.
    """

    programs: int
    called: tuple[str, ...]
    kernels: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    busy_us: float = 0.0

    @property
    def foreign(self) -> list[str]:
        """Functions and programs that are not the engine's."""
        modules = {f"jit_{name}" for name in PROGRAMS}
        functions = [name for name in self.called if name not in PROGRAMS]
        return functions + [name for name in self.kernels if name not in modules]


def profile_of(work: Callable[[], Any]) -> Any:
    """Return the `ProfileData` of `work()`, which must wait for the device. Profiling slows it."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            work()
        (path,) = Path(folder).rglob("*.xplane.pb")
        return jax.profiler.ProfileData.from_file(str(path))


def launched_by(work: Callable[[], Any]) -> Launched:
    """Count what `work()` launches; see `profile_of`."""
    return read_trace(profile_of(work))


def read_trace(trace: Any) -> Launched:
    """Count events in a `ProfileData`. A GPU has a plane with a line for each stream."""
    host: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    copies, busy_ns = 0, 0.0
    for plane in trace.planes:
        for line in plane.lines:
            if not plane.name.startswith("/device:GPU"):
                host.update(event.name for event in line.events)
            elif line.name.startswith("Stream"):
                for event in line.events:
                    module = dict(event.stats).get("hlo_module")
                    busy_ns += event.duration_ns
                    if module is None and _COPIES.search(event.name):
                        copies += 1
                    else:
                        kernels[str(module or UNNAMED)] += 1
    programs = sum(count for name, count in host.items() if _EXECUTED.search(name))
    called = {found[1] for name in host if (found := _CALLED.match(name))}
    return Launched(programs, tuple(sorted(called)), dict(kernels), copies, busy_ns / 1e3)
