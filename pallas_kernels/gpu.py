"""The GPU that programs are traced for, and the features that kernels may use there.

On CPU the kernels run interpreted. `assume` makes them take the code paths of a GPU; with
`compiling` they are compiled for it without a device. Enter the context before tracing, and do not
reuse a traced program outside of it: JAX's caches do not know about it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclass(frozen=True)
class Gpu:
    """Features of one GPU architecture.

    Attributes:
        arch: `gfx950`, `gfx942`, `sm_90`, …, or `cpu`, where kernels are interpreted.
        fp8: The float8 that its matrix units multiply. Bits of e4m3fnuz have half the value that
            they have in e4m3fn.
        scaled_dot: The matrix units take MXFP4 with its scales.
        lds_bytes: Local memory of a workgroup (shared memory of a block) in bytes.
        rounds_to_bfloat16: An instruction rounds to bfloat16.
        warp_group: Rows of a tile that four warps multiply together, the only way to multiply
            float8 on such a GPU; 0 elsewhere.
        kind: JAX's name of the device.
    """

    arch: str
    fp8: DTypeLike = jnp.float8_e4m3fn
    scaled_dot: bool = False
    lds_bytes: int = 65536
    rounds_to_bfloat16: bool = True
    warp_group: int = 0
    kind: str = ""

    @property
    def is_amd(self) -> bool:
        """True for AMD GPUs, whose waves have 64 lanes."""
        return self.arch.startswith("gfx")


MI355X = Gpu("gfx950", scaled_dot=True, lds_bytes=163840, kind="gfx950")
MI325X = Gpu("gfx942", fp8=jnp.float8_e4m3fnuz, rounds_to_bfloat16=False, kind="gfx942")
H200 = Gpu("sm_90", lds_bytes=232448, warp_group=64, kind="NVIDIA H200")
KNOWN = {gpu.arch: gpu for gpu in (MI355X, MI325X, H200)}

# XLA counts a donated pool that is written in place twice. It then finds that pools which fill the
# memory do not fit, and would recompute results to make room: 1,800 operations of a round. The slop
# factor lets it use a hundred times what the arguments leave.
_FITS = {"xla_gpu_memory_limit_slop_factor": "10000"}
COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {
    # Without autotuning, XLA's own matrix products have arbitrary tiles and sum split-K parts in a
    # separate launch. hipBLASLt takes one launch, which also adds the residual.
    "gfx": {"xla_gpu_enable_triton_gemm": False, **_FITS},
    "sm_": {**_FITS},
}
"""XLA's compiler options by prefix of the architecture's name."""

CPU_OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""XLA's options for interpreted kernels, which take longer to compile than to run. CPU only."""
if jax.__version_info__ < (0, 11):  # XLA of JAX 0.11 lacks this option and aborts.
    CPU_OPTIONS["xla_cpu_use_fusion_emitters"] = False
CPU_FLAGS = [f"--{name}={str(value).lower()}" for name, value in CPU_OPTIONS.items()]

_assumed: ContextVar[Gpu | None] = ContextVar("assumed", default=None)
_compiling: ContextVar[bool] = ContextVar("compiling", default=False)


def current() -> Gpu:
    """Return the GPU to trace for: the assumed one, else JAX's first device."""
    assumed = _assumed.get()
    if assumed is not None:
        return assumed
    if jax.default_backend() == "cpu":
        return Gpu("cpu")
    arch = _arch_of(str(getattr(jax.devices()[0], "compute_capability", "")))
    return KNOWN.get(arch, Gpu(arch))


def _arch_of(compute_capability: str) -> str:
    """Convert JAX's compute capability: `gfx942:sramecc+:xnack-` -> gfx942, `9.0` -> sm_90."""
    name = compute_capability.partition(":")[0]
    return f"sm_{name.replace('.', '')}" if name[:1].isdigit() else name


def compiler_options() -> dict[str, str | bool]:
    """Return XLA's compiler options for the current GPU."""
    arch = current().arch
    return next((found for name, found in COMPILER_OPTIONS.items() if arch.startswith(name)), {})


def compile_quickly() -> None:
    """Set XLA_FLAGS of processes started from now on, which interpret kernels, to CPU_FLAGS."""
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *CPU_FLAGS]).strip()


def interpreted() -> bool:
    """Return whether kernels run as plain JAX: on CPU, unless a program is compiled for a GPU."""
    return jax.default_backend() == "cpu" and not _compiling.get()


@contextmanager
def assume(arch: str, *, compiling: bool = False) -> Iterator[Gpu]:
    """Trace for the GPU `arch` in this context. Raises ValueError for an unknown one."""
    if arch not in KNOWN:
        raise ValueError(f"expected one of {', '.join(KNOWN)}; got {arch!r}")
    tokens = _assumed.set(KNOWN[arch]), _compiling.set(compiling)
    try:
        yield KNOWN[arch]
    finally:
        _assumed.reset(tokens[0])
        _compiling.reset(tokens[1])
