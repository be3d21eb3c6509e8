"""Compilation of jitted programs for absent GPUs, with a report of every kernel."""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_tools.aot.target import Target
from eagle3_tools.aot.targets import target_of
from pallas_kernels import gpu
from pallas_kernels.triton.ir_text import abstract_gpu


@dataclass(frozen=True)
class Program:
    """A compiled program; byte counts are for one device.

    hlo: XLA's optimised module, in which launches are in order. kernels: every kernel that XLA
    generated, including Pallas's: `GpuKernel` for AMD, `SmKernel` for NVIDIA. XLA's own fusions for
    AMD are listed only if this process compiled them for the first time.
    """

    arch: str
    hlo: str
    kernels: list[Any]
    argument_bytes: int
    alias_bytes: int
    temporary_bytes: int

    def kernel(self, name: str) -> Any:
        """Return the kernel of this name. Raises KeyError with the existing names."""
        found = [kernel for kernel in self.kernels if kernel.name == name]
        if len(found) != 1:
            raise KeyError(f"{name}: the program has {sorted(k.name for k in self.kernels)}")
        return found[0]


def compile_program(
    arch: str, function: Callable[..., Any], *shapes: Any, donate: tuple[int, ...] = ()
) -> Program:
    """Compile as `compile_for` does, and read the compiler's report on the kernels."""
    target = target_of(arch)
    with target.kept_files() as folder:
        compiled = compile_for(
            arch, function, *shapes, donate=donate, options=target.options(folder)
        )
        hlo = compiled.as_text() or ""
        kernels = target.kernels_of(arch, hlo, folder)
    memory: Any = compiled.memory_analysis()
    return Program(
        arch,
        hlo,
        kernels,
        memory.argument_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
    )


def compile_for(
    arch: str,
    function: Callable[..., Any],
    *shapes: Any,
    donate: tuple[int, ...] = (),
    options: Mapping[str, str | bool] = MappingProxyType({}),
) -> jax.stages.Compiled:
    """Trace and compile `function` for GPUs of this architecture.

    shapes: pytrees of ShapeDtypeStruct; nothing is allocated. Shapes on a mesh of `devices(arch,
    count)` are sharded over it; others are on a single device. options: compiler options in
    addition to `gpu.compiler_options()`. Raises RuntimeError if XLA's plugin is not installed
    (extras `rocm`, `cuda-check`), and the compiler's errors.
    """
    one = NamedSharding(Mesh(np.array(devices(arch, 1)), ("x",)), PartitionSpec())
    placed = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=s.sharding or one), shapes
    )
    with gpu.assume(arch, compiling=True), abstract_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # JAX's caches do not know the assumed GPU: a new function forces a new trace.
        lowered = jax.jit(lambda *a: function(*a), donate_argnums=donate).lower(*placed)
        options = {**gpu.compiler_options(), **options}
    return lowered.compile(compiler_options=options)


@cache
def devices(arch: str, count: int) -> tuple[Any, ...]:
    """Return `count` devices of this architecture in one host, to compile for."""
    target = target_of(arch)
    _load(target)
    described = topologies.get_topology_desc(
        topology_name="",
        platform=target.platform,
        target_config=re.sub(r"\s+", " ", target.description(gpu.KNOWN[arch])),
        topology=f"1x1x{count}",
    )
    return tuple(described.devices)


@cache
def _load(target: Target) -> None:
    """Load the target's compiler once per process."""
    target.load()
