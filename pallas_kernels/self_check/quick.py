"""How XLA compiles where kernels are interpreted: compiling them takes longer than running them."""

import os

OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""On a CPU only."""


def compile_quickly() -> None:
    """In processes that are started from now on."""
    flags = [f"--{name}={str(value).lower()}" for name, value in OPTIONS.items()]
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()
