"""ROCm compiler for MI355X and MI325X, linked with empty libraries where ROCm is missing."""

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from eagle3_tools.aot.amd.code_object import GpuKernel, read_code_object
from eagle3_tools.aot.amd.stubs import make_stubs
from eagle3_tools.aot.target import Column, Target, dynamic_memory
from eagle3_tools.aot.triton_calls import TritonCall, triton_calls
from eagle3_tools.kernel_model.facts import KernelFacts
from pallas_kernels.gpu import Gpu

_compiled: dict[tuple[str, str, str], GpuKernel] = {}
"""(architecture, name, call text) -> kernel. XLA caches code and writes its files only once."""


def _kept(arch: str, call: TritonCall, found: list[GpuKernel]) -> list[GpuKernel]:
    """Return the call's kernel if an earlier program compiled it; remember a new one."""
    known = (arch, call.compiled, call.text)
    new = next((kernel for kernel in found if kernel.name == call.compiled), None)
    if new:
        _compiled[known] = new
    elif known in _compiled:
        return [_compiled[known]]
    return []


MOST_VGPRS = 512
# Figures of XLA's own target specs (mi350, mi300), except for the memory: that of MI355X and
# MI325X, bandwidth in GB/s and size in GiB.
# The runtime version is not in the specs. Without it XLA drops every fp8 rewrite, as for a toolkit
# that is too old.
_TARGETS = {
    "gfx950": {"name": "MI350X", "cores": 256, "ghz": 2.2, "bandwidth": 7782, "memory": 288},
    "gfx942": {"name": "MI300X", "cores": 304, "ghz": 2.1, "bandwidth": 6810, "memory": 256},
}
_HALF = re.compile(r"(?<!b)f16")


class AmdTarget(Target):
    """XLA's ROCm compiler."""

    platform = "rocm"
    name = "ROCm"
    plugins = ("xla_rocm7", "xla_rocm10")
    library_name = "xla_rocm_plugin.so"
    columns = (
        Column("VGPRs", lambda kernel, gpu: kernel.vgprs),
        Column("SGPR spills", lambda kernel, gpu: kernel.sgpr_spills),
        Column("LDS KiB", lambda kernel, gpu: kernel.lds_bytes / 1024),
        Column("waves", lambda kernel, gpu: kernel.waves_per_simd(gpu.lds_bytes), min),
    )

    def load(self) -> None:
        """Load the plugin with empty libraries in place of missing ones."""
        plugin = self.library()
        size = plugin.stat().st_size
        stubs = Path(tempfile.gettempdir()) / f"eagle3-rocm-stubs-{os.getuid()}-{size}"
        for library in make_stubs(plugin, stubs):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        super().load()

    def description(self, gpu: Gpu) -> str:
        """Describe the GPU. XLA uses four fifths of the memory if no allocator states a limit."""
        t, lds = _TARGETS[gpu.arch], gpu.lds_bytes
        memory = (t["memory"] << 30) * 5 // 4
        return f"""gpu_device_info {{
            threads_per_block_limit: 1024 threads_per_warp: 64 threads_per_core_limit: 2048
            shared_memory_per_block: {lds} shared_memory_per_block_optin: {lds}
            shared_memory_per_core: {lds} core_count: {t["cores"]} fpus_per_core: 128
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65536 block_dim_limit_z: 65536
            memory_bandwidth: {t["bandwidth"]}000000000 l2_cache_size: 4194304
            clock_rate_ghz: {t["ghz"]} device_memory_size: {memory}
            registers_per_core_limit: 131072 registers_per_block_limit: 131072
            rocm_compute_capability {{ gcn_arch_name: "{gpu.arch}:sramecc+:xnack-" }} }}
            platform_name: "ROCM" runtime_version {{ major: 7 minor: 2 }} dnn_version_info {{ }}
            device_description_str: "{t["name"]}" """

    @contextmanager
    def kept_files(self) -> Iterator[Path]:
        """Return a context whose folder receives XLA's code objects and the IR next to them."""
        changed = ("TMPDIR", "TF_ROCM_KEEP_XLA_TEMPFILES")
        before = {name: os.environ.get(name) for name in changed}
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(zip(changed, (folder, "1"), strict=True))
            try:
                yield Path(folder)
            finally:
                for name, value in before.items():
                    os.environ.pop(name, None)
                    os.environ.update({} if value is None else {name: value})

    def options(self, folder: Path) -> dict[str, str | bool]:
        """Dump the launches, which state a kernel's local memory."""
        return {"xla_dump_to": str(folder)}

    def kernels_of(self, arch: str, hlo: str, folder: Path) -> list[GpuKernel]:
        """Return the kernels of the code objects and those that the compiler had cached."""
        dynamic = dynamic_memory(folder)
        found = [
            replace(kernel, lds_bytes=kernel.lds_bytes + dynamic.get(kernel.name, 0))
            for path in sorted(folder.glob("*.hsaco"))
            for kernel in read_code_object(path)
        ]
        return found + [kernel for call in triton_calls(hlo) for kernel in _kept(arch, call, found)]

    def problems(self, kernel: GpuKernel, gpu: Gpu) -> list[str]:
        """List excess registers and memory, spills, and half precision. A spill that finds a free
        accumulation register is a move and takes no scratch memory; the timeline counts it."""
        found = {
            f"{kernel.vgpr_spills} VGPR spills, {kernel.scratch_bytes} B scratch": (
                kernel.scratch_bytes > 0
            ),
            f"{kernel.vgprs} VGPRs of {MOST_VGPRS}": kernel.vgprs > MOST_VGPRS,
            f"{kernel.lds_bytes} B of {gpu.lds_bytes} B LDS": kernel.lds_bytes > gpu.lds_bytes,
            "f16 matrix instructions": any(_HALF.search(name) for name in kernel.matrix),
        }
        return [problem for problem, holds in found.items() if holds]

    def narrow_loads(self, kernel: GpuKernel, call: TritonCall) -> dict[int, int]:
        """Read the machine code if the IR has such loads; needs the extra `machine-code`."""
        from eagle3_tools.aot.amd.facts import narrow_loads

        return narrow_loads(kernel, call)

    def facts(self, kernel: GpuKernel, call: TritonCall, arch: str) -> KernelFacts:
        """Read the machine code; needs the extra `machine-code`."""
        from eagle3_tools.aot.amd.facts import read_facts

        return read_facts(kernel, call, arch)

    def short_name(self, instruction: str) -> str:
        """Shorten mfma.scale.f32.16x16x128.f8f6f4.v8i32.v8i32 to scale.f8f6f4."""
        parts = instruction.split(".")
        scale = ["scale"] if "scale" in parts else []
        types = [found[0] for part in parts if (found := re.search(r"(b?fp?\d\w*|i8)$", part))]
        return ".".join([*scale, types[-1] if types else instruction])
