"""The number of threads that compute on a CPU.

XLA sizes its pools when JAX's CPU client starts, by an environment variable or else by the cores
that the process may use. Compiled programs divide their loops by it.
"""

import os
from pathlib import Path

import jax

from eagle3_jax.engine.programs.fingerprint import THREADS

FLAG = "--cpu-threads"
POOL = "tf_XLAEigen"
"""Name of the pool's threads in Linux."""
TASKS = Path("/proc/self/task")


def set_cpu_threads(count: int | None) -> None:
    """Let XLA compute in `count` threads, or in one per core. Call it before JAX has devices."""
    if count is not None:
        os.environ[THREADS] = str(count)


def check_cpu_threads(count: int | None) -> None:
    """Raise ValueError if JAX has devices and does not compute in `count` threads."""
    if count is None:
        return
    if (platform := jax.default_backend()) != "cpu":
        raise ValueError(
            f"{FLAG} {count} is for engines on a CPU, this one runs on {platform}: leave it out, "
            "or set JAX_PLATFORMS=cpu"
        )
    threads = (task.joinpath("comm").read_text().strip() for task in TASKS.glob("*"))
    found = sum(name == POOL for name in threads)
    if TASKS.exists() and found != count:
        raise ValueError(
            f"{FLAG} {count}: JAX has started {found} threads for {jax.local_device_count()} "
            "devices; set it before JAX starts, and at least one thread a device"
        )
