"""XLA options for interpreted kernels, which take longer to compile than to run."""

import os
from typing import Any

import jax

OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""Options for CPU only."""
if jax.__version_info__ < (0, 11):  # XLA of JAX 0.11 lacks this option and aborts.
    OPTIONS["xla_cpu_use_fusion_emitters"] = False
FLAGS = [f"--{name}={str(value).lower()}" for name, value in OPTIONS.items()]


def compile_quickly() -> None:
    """Set XLA_FLAGS for processes started from now on."""
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()
