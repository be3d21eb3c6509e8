"""How XLA compiles where kernels are interpreted: compiling them takes longer than running them."""

import os
from typing import Any

import jax

OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""On a CPU only."""
if jax.__version_info__ < (0, 11):  # XLA of JAX 0.11 has no such option and ends the process.
    OPTIONS["xla_cpu_use_fusion_emitters"] = False
FLAGS = [f"--{name}={str(value).lower()}" for name, value in OPTIONS.items()]


def compile_quickly() -> None:
    """In processes that are started from now on."""
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *FLAGS]).strip()
