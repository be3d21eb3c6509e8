"""Facts besides the program that its last bits depend on: XLA's target and options."""

import os
import platform
from pathlib import Path
from typing import Any

import jax
from jax import Array
from jax.extend import backend

CPU_FACTS = Path("/proc/cpuinfo")
FEATURES = "flags", "Features"
"""The line of CPU features on x86 and on Arm."""
WITHOUT_EFFECT = "--xla_dump", "--xla_force_host_platform_device_count", "--xla_gpu_cuda_data_dir"
"""XLA flags that change no program."""


def compiled_for(leaf: Array) -> tuple[object, ...]:
    """Return facts of an array's devices that compiled programs depend on.

    They are runtime version, XLA flags, matmul precision and, for CPUs, instructions and threads.
    """
    config: Any = jax.config  # Its stubs leave the field out.
    flags = os.environ.get("XLA_FLAGS", "").split()
    (name,) = {device.platform for device in leaf.devices()}
    return (
        backend.get_backend(name).platform_version,
        sorted(flag for flag in flags if not flag.startswith(WITHOUT_EFFECT)),
        str(config.jax_default_matmul_precision),
        (cpu_features(), cpu_threads()) if name == "cpu" else None,
    )


def cpu_features() -> list[str]:
    """Return this CPU's instructions as Linux lists them, elsewhere its name alone."""
    try:
        lines = CPU_FACTS.read_text().splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    listed = (line.partition(":")[2].split() for line in lines if line.startswith(FEATURES))
    return sorted(next(listed, [platform.machine()]))


def cpu_threads() -> int:
    """Return the number of cores this process may use, which is XLA's thread count."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count() or 1
