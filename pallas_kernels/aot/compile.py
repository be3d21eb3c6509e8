"""Compiles jitted programs for MI355X and MI325X here, and reports every kernel of theirs."""

import ctypes
import importlib.util
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge
from jax._src.lib import xla_client
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import gpu
from pallas_kernels.aot.code_object import GpuKernel, read_code_object
from pallas_kernels.aot.stubs import make_stubs
from pallas_kernels.triton.ir_text import abstract_gpu

# Figures of XLA's own target specs (mi350, mi300). The runtime version is not in them; without it
# XLA drops every fp8 rewrite, as for a toolkit that is too old.
_TARGETS = {
    "gfx950": {
        "lds": 163840,
        "cores": 256,
        "bandwidth": 7782000000000,
        "ghz": 2.2,
        "name": "MI350X",
    },
    "gfx942": {
        "lds": 65536,
        "cores": 304,
        "bandwidth": 6810000000000,
        "ghz": 2.1,
        "name": "MI300X",
    },
}


@dataclass(frozen=True)
class Program:
    """A compiled program. hlo: XLA's optimised module, which says what is launched in which order.

    kernels: every kernel that XLA generated, Pallas's included. The bytes are of one device.
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
    """Traces and compiles `function` for one GPU of this architecture.

    shapes: pytrees of ShapeDtypeStruct; nothing is allocated. Raises RuntimeError where XLA's ROCm
    plugin is not installed (extra `rocm`), and what the compiler raises.
    """
    device = devices(arch, 1)[0]
    sharding = NamedSharding(Mesh(np.array([device]), ("x",)), PartitionSpec())
    placed = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes
    )
    with gpu.assume(arch, compiling=True), abstract_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # JAX's caches don't know the GPU that is assumed: a new function is traced anew.
        lowered = jax.jit(lambda *a: function(*a), donate_argnums=donate).lower(*placed)
    with _kept_files() as folder:
        compiled = lowered.compile()
        kernels = [k for f in sorted(folder.glob("*.hsaco")) for k in read_code_object(f)]
    memory = compiled.memory_analysis()
    return Program(
        arch,
        compiled.as_text(),
        kernels,
        memory.argument_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
    )


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
    found = importlib.util.find_spec("jax_plugins.xla_rocm7")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError(
            "XLA's ROCm compiler is not installed: pip install 'eagle3-jax[rocm]' (no GPU needed)"
        )
    plugin = Path(found.submodule_search_locations[0]) / "xla_rocm_plugin.so"
    stubs = Path(tempfile.gettempdir()) / f"eagle3-rocm-stubs-{os.getuid()}-{plugin.stat().st_size}"
    for library in make_stubs(plugin, stubs):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    options = xla_client.generate_pjrt_gpu_plugin_options() | {"platform_name": "ROCM"}
    xla_bridge.register_plugin("rocm", priority=500, library_path=str(plugin), options=options)


@contextmanager
def _kept_files() -> Iterator[Path]:
    """Where XLA leaves code objects and IR meanwhile."""
    changed = ("TMPDIR", "TF_ROCM_KEEP_XLA_TEMPFILES")
    before = {name: os.environ.get(name) for name in changed}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(zip(changed, (folder, "1"), strict=True))
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _target(arch: str) -> str:
    """XLA's description of the GPU, as text."""
    t = _TARGETS[arch]
    device = f"""
        threads_per_block_limit: 1024 threads_per_warp: 64 threads_per_core_limit: 2048
        shared_memory_per_block: {t["lds"]} shared_memory_per_block_optin: {t["lds"]}
        shared_memory_per_core: {t["lds"]} core_count: {t["cores"]} fpus_per_core: 128
        block_dim_limit_x: 2147483647 block_dim_limit_y: 65536 block_dim_limit_z: 65536
        memory_bandwidth: {t["bandwidth"]} l2_cache_size: 4194304 clock_rate_ghz: {t["ghz"]}
        device_memory_size: 270566162432
        registers_per_core_limit: 131072 registers_per_block_limit: 131072
        rocm_compute_capability {{ gcn_arch_name: "{arch}:sramecc+:xnack-" }}"""
    return re.sub(
        r"\s+",
        " ",
        f"""gpu_device_info {{ {device} }} platform_name: "ROCM"
        runtime_version {{ major: 7 minor: 2 }} dnn_version_info {{ }}
        device_description_str: "{t["name"]}" """,
    )
