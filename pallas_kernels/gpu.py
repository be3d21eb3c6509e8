"""The GPU that programs are traced for, and what a kernel may use there.

On CPU the kernels run interpreted; `assume` makes them take the paths of a GPU there, and
`compiling` makes them real, for a compiler without a device. Both must be entered before a program
is traced, and a traced program must not be reused outside: JAX's caches do not know of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclass(frozen=True)
class Gpu:
    """arch: `gfx950`, `gfx942`, `sm_90`, …, or `cpu`, where kernels are interpreted.

    fp8: the float8 that its matrix units multiply; e4m3fnuz has the bits of e4m3fn at half the
    value. scaled_dot: whether they take MXFP4 with its scales. lds_bytes: local memory of a
    workgroup, shared memory of a block. rounds_to_bfloat16: whether an instruction does.
    warp_group: rows of a tile that four warps multiply together, where float8 is multiplied in no
    other way; 0 elsewhere. kind: JAX's name of the device.
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
        """Whether it is one of AMD's, whose waves have 64 lanes."""
        return self.arch.startswith("gfx")


MI355X = Gpu("gfx950", scaled_dot=True, lds_bytes=163840, kind="gfx950")
MI325X = Gpu("gfx942", fp8=jnp.float8_e4m3fnuz, rounds_to_bfloat16=False, kind="gfx942")
H200 = Gpu("sm_90", lds_bytes=232448, warp_group=64, kind="NVIDIA H200")
KNOWN = {gpu.arch: gpu for gpu in (MI355X, MI325X, H200)}

COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {
    # Without autotuning XLA's own matrix products have arbitrary tiles and sum their parts in a
    # launch of their own; hipBLASLt takes one launch, and adds the residual in it.
    # XLA counts a donated pool that is written in place once more, finds that pools which fill the
    # memory do not fit, and would compute results again to make room: 1,800 operations of a round.
    # So it may use a hundred times what arguments leave.
    "gfx": {"xla_gpu_enable_triton_gemm": False, "xla_gpu_memory_limit_slop_factor": "10000"},
}
"""Of XLA, by the beginning of the architecture's name."""

_assumed: ContextVar[Gpu | None] = ContextVar("assumed", default=None)
_compiling: ContextVar[bool] = ContextVar("compiling", default=False)


def current() -> Gpu:
    """The GPU to trace for: the assumed one, or what JAX's first device is."""
    assumed = _assumed.get()
    if assumed is not None:
        return assumed
    if jax.default_backend() == "cpu":
        return Gpu("cpu")
    arch = _arch_of(str(getattr(jax.devices()[0], "compute_capability", "")))
    return KNOWN.get(arch, Gpu(arch))


def _arch_of(compute_capability: str) -> str:
    """`gfx942:sramecc+:xnack-` -> gfx942, `9.0` -> sm_90."""
    name = compute_capability.partition(":")[0]
    return f"sm_{name.replace('.', '')}" if name[:1].isdigit() else name


def compiler_options() -> dict[str, str | bool]:
    """What programs for this GPU are compiled with."""
    arch = current().arch
    return next((found for name, found in COMPILER_OPTIONS.items() if arch.startswith(name)), {})


def interpreted() -> bool:
    """Whether kernels run as plain JAX: on CPU, unless a program is compiled for a GPU."""
    return jax.default_backend() == "cpu" and not _compiling.get()


@contextmanager
def assume(arch: str, *, compiling: bool = False) -> Iterator[Gpu]:
    """Traces for this GPU meanwhile. Raises ValueError for one that is not known."""
    if arch not in KNOWN:
        raise ValueError(f"expected one of {', '.join(KNOWN)}; got {arch!r}")
    tokens = _assumed.set(KNOWN[arch]), _compiling.set(compiling)
    try:
        yield KNOWN[arch]
    finally:
        _assumed.reset(tokens[0])
        _compiling.reset(tokens[1])
