"""The GPU that programs are traced for, and the features that kernels may use there.

On CPU the kernels run interpreted. `assume` makes them take the code paths of a GPU; with
`compiling` they are compiled for it without a device. Enter the context before tracing, and do not
reuse a traced program outside of it: JAX's caches do not know about it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
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

AUTOTUNE_LEVEL = "xla_gpu_autotune_level"
COMPILER_OPTIONS: dict[str, str | bool] = {
    # XLA's autotuner keeps what was fastest at this start, so that programs differ between starts
    # and from those that were checked.
    AUTOTUNE_LEVEL: "0",
    # Without autotuning, XLA's own matrix products have arbitrary tiles and sum split-K parts in a
    # separate launch. The library takes one launch, which also adds the residual.
    "xla_gpu_enable_triton_gemm": False,
    # XLA counts a donated pool that is written in place twice. It then finds that pools which fill
    # the memory do not fit, and would recompute results to make room: 1,800 operations of a round.
    # The slop factor lets it use a hundred times what the arguments leave.
    "xla_gpu_memory_limit_slop_factor": "10000",
}
"""XLA's compiler options for GPUs."""

CPU_COMPILER_OPTIONS: dict[str, str | bool] = {
    # Twice the width of AVX2: more independent sums per loop keep its units busy. Measured with the
    # products of `streamed.py`.
    "xla_cpu_prefer_vector_width": "512"
}
"""XLA's compiler options for CPUs."""

CPU_OPTIONS: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""XLA's options for interpreted kernels, which take longer to compile than to run. CPU only."""
if jax.__version_info__ < (0, 11):  # XLA of JAX 0.11 lacks this option and aborts.
    CPU_OPTIONS["xla_cpu_use_fusion_emitters"] = False
CPU_FLAGS = [f"--{name}={str(value).lower()}" for name, value in CPU_OPTIONS.items()]

_PLUGIN = re.compile("jax-(rocm|cuda)[0-9]+-(pjrt|plugin)")
_LIBRARY = re.compile("nvidia-(cublas|cudnn|nccl)(-cu[0-9]+)?|rocm-sdk-.*")
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


def compiler_options(*, autotune: bool = False) -> dict[str, str | bool]:
    """Return XLA's compiler options for the current device, without those that XLA_FLAGS sets.

    With `autotune`, XLA's default level of autotuning counts.
    """
    given = {*xla_flags(), AUTOTUNE_LEVEL} if autotune else xla_flags()
    options = CPU_COMPILER_OPTIONS if current().arch == "cpu" else COMPILER_OPTIONS
    return {name: value for name, value in options.items() if name not in given}


def xla_flags() -> dict[str, str]:
    """Return the flags of XLA_FLAGS, or of the file that it names, without their dashes."""
    text = os.environ.get("XLA_FLAGS", "").strip()
    if text and not text.startswith("-"):
        with suppress(OSError):  # XLA ignores a file that it cannot read.
            text = Path(text).read_text()
    flags = (flag.removeprefix("--").partition("=") for flag in text.split() if flag[0] == "-")
    return {name: value or "true" for name, _, value in flags}


def plugin_versions() -> dict[str, str]:
    """Return the versions of the packages that bring XLA's compilers for GPUs."""
    return _versions(_PLUGIN)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that compiled programs call: packages, and ROCm's."""
    file = Path(os.environ.get("ROCM_PATH", "/opt/rocm"), ".info/version")
    installed = {"ROCm": file.read_text().strip()} if file.is_file() else {}
    return _versions(_LIBRARY) | installed


def _versions(names: re.Pattern[str]) -> dict[str, str]:
    found = ((package.name, package.version) for package in distributions())
    return dict(sorted(one for one in found if names.fullmatch(one[0])))


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
