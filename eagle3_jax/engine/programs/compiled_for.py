"""What a program's last bits depend on besides the program: what XLA compiles it for, and how."""

import os
import platform
from pathlib import Path
from typing import Any

import jax
from jax import Array
from jax.extend import backend

CPU_FACTS = Path("/proc/cpuinfo")
FEATURES = "flags", "Features"
"""The line of them on x86 and on Arm."""
WITHOUT_EFFECT = "--xla_dump", "--xla_force_host_platform_device_count", "--xla_gpu_cuda_data_dir"
"""Flags of XLA that change no program."""


def compiled_for(leaf: Array) -> tuple[object, ...]:
    """Of the devices that an array lies on: the version of their runtime, XLA's flags, the
    precision of products and, of CPUs, their instructions and how many threads divide a sum."""
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
    """The instructions of this CPU, as Linux lists them; elsewhere its name alone."""
    try:
        lines = CPU_FACTS.read_text().splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    listed = (line.partition(":")[2].split() for line in lines if line.startswith(FEATURES))
    return sorted(next(listed, [platform.machine()]))


def cpu_threads() -> int:
    """Cores that this process may use, which is how many threads XLA has."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count() or 1
