"""Compiles jitted programs for MI355X and MI325X here, and reports every kernel of theirs."""

import ctypes
import importlib.util
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import gpu
from pallas_kernels.aot.code_object import GpuKernel
from pallas_kernels.aot.kept_files import kept_files, kernels_of
from pallas_kernels.aot.stubs import make_stubs
from pallas_kernels.triton.ir_text import abstract_gpu

NOT_INSTALLED = (
    "XLA's ROCm compiler is not installed: pip install 'eagle3-jax[rocm]' (no GPU needed)"
)
# Figures of XLA's own target specs (mi350, mi300), but for the memory: that of MI355X and MI325X.
# Memory moves so many GB a second and is so many GiB.
# The runtime version is not in the specs; without it XLA drops every fp8 rewrite, as for a toolkit
# that is too old.
_TARGETS = {
    "gfx950": {"name": "MI350X", "cores": 256, "ghz": 2.2, "bandwidth": 7782, "memory": 288},
    "gfx942": {"name": "MI300X", "cores": 304, "ghz": 2.1, "bandwidth": 6810, "memory": 256},
}


@dataclass(frozen=True)
class Program:
    """A compiled program. hlo: XLA's optimised module, which says what is launched in which order.

    kernels: every kernel that XLA generated, Pallas's included (of its own fusions only those that
    this process compiles for the first time). The bytes are of one device.
    """

    arch: str
    hlo: str
    kernels: list[GpuKernel]
    argument_bytes: int
    alias_bytes: int
    temporary_bytes: int

    def kernel(self, name: str) -> GpuKernel:
        """The one of this name. Raises KeyError that lists the names there are."""
        found = [kernel for kernel in self.kernels if kernel.name == name]
        if len(found) != 1:
            raise KeyError(f"{name}: the program has {sorted(k.name for k in self.kernels)}")
        return found[0]


def compile_program(
    arch: str, function: Callable[..., Any], *shapes: Any, donate: tuple[int, ...] = ()
) -> Program:
    """Compiles as `compile_for` does, and reads what the compiler says of the kernels."""
    with kept_files() as folder:
        compiled = compile_for(
            arch, function, *shapes, donate=donate, options={"xla_dump_to": str(folder)}
        )
        hlo = compiled.as_text() or ""
        kernels = kernels_of(arch, hlo, folder)
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
    """Traces and compiles `function` for GPUs of this architecture.

    shapes: pytrees of ShapeDtypeStruct; nothing is allocated. Those that lie on a mesh of
    `devices(arch, count)` say what every device holds; the others go to a single one. options:
    the compiler's, besides `gpu.compiler_options()`. Raises RuntimeError where XLA's ROCm plugin
    is not installed (extra `rocm`), and what the compiler raises.
    """
    one = NamedSharding(Mesh(np.array(devices(arch, 1)), ("x",)), PartitionSpec())
    placed = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=s.sharding or one), shapes
    )
    with gpu.assume(arch, compiling=True), abstract_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # JAX's caches don't know the GPU that is assumed: a new function is traced anew.
        lowered = jax.jit(lambda *a: function(*a), donate_argnums=donate).lower(*placed)
        options = {**gpu.compiler_options(), **options}
    return lowered.compile(compiler_options=options)


def rocm_is_installed() -> bool:
    """Whether XLA's ROCm compiler (extra `rocm`) is there."""
    return _plugin_package() is not None


@cache
def devices(arch: str, count: int) -> tuple[Any, ...]:
    """Devices that can be compiled for: `count` of this architecture in one host."""
    _load_plugin()
    described = topologies.get_topology_desc(
        topology_name="", platform="rocm", target_config=_target(arch), topology=f"1x1x{count}"
    )
    return tuple(described.devices)


@cache
def _load_plugin() -> None:
    """Makes XLA's ROCm compiler known to JAX, with empty libraries where ROCm is missing."""
    found = _plugin_package()
    if found is None:
        raise RuntimeError(NOT_INSTALLED)
    plugin = found / "xla_rocm_plugin.so"
    stubs = Path(tempfile.gettempdir()) / f"eagle3-rocm-stubs-{os.getuid()}-{plugin.stat().st_size}"
    for library in make_stubs(plugin, stubs):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    options = {**xla_client.generate_pjrt_gpu_plugin_options(), "platform_name": "ROCM"}
    xla_bridge.register_plugin("rocm", priority=500, library_path=str(plugin), options=options)


def _plugin_package() -> Path | None:
    """Where the plugin is installed. Without any plugin there is no package jax_plugins."""
    try:
        found = importlib.util.find_spec("jax_plugins.xla_rocm7")
    except ModuleNotFoundError:
        return None
    locations = found.submodule_search_locations if found else None
    return Path(locations[0]) if locations else None


def _target(arch: str) -> str:
    """XLA's description of the GPU, as text."""
    t, lds = _TARGETS[arch], gpu.KNOWN[arch].lds_bytes
    # XLA plans for four fifths of what there is where no allocator says how much may be used.
    memory = (t["memory"] << 30) * 5 // 4
    device = f"""
        threads_per_block_limit: 1024 threads_per_warp: 64 threads_per_core_limit: 2048
        shared_memory_per_block: {lds} shared_memory_per_block_optin: {lds}
        shared_memory_per_core: {lds} core_count: {t["cores"]} fpus_per_core: 128
        block_dim_limit_x: 2147483647 block_dim_limit_y: 65536 block_dim_limit_z: 65536
        memory_bandwidth: {t["bandwidth"]}000000000 l2_cache_size: 4194304
        clock_rate_ghz: {t["ghz"]} device_memory_size: {memory}
        registers_per_core_limit: 131072 registers_per_block_limit: 131072
        rocm_compute_capability {{ gcn_arch_name: "{arch}:sramecc+:xnack-" }}"""
    return re.sub(
        r"\s+",
        " ",
        f"""gpu_device_info {{ {device} }} platform_name: "ROCM"
        runtime_version {{ major: 7 minor: 2 }} dnn_version_info {{ }}
        device_description_str: "{t["name"]}" """,
    )
