"""CUDA compiler for H200, which needs neither a driver nor CUDA's libraries."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from jax._src.lib import xla_client  # pyright: ignore[reportPrivateImportUsage]

from eagle3_tools.aot.nvidia.facts import read_facts
from eagle3_tools.aot.nvidia.ptx import SmKernel, find_accesses, lines_of, read_kernels
from eagle3_tools.aot.nvidia.toolkit import assembled, make_toolkit
from eagle3_tools.aot.target import NARROW, Column, Target, dynamic_memory
from eagle3_tools.aot.triton_calls import TritonCall
from eagle3_tools.kernel_model.facts import KernelFacts
from pallas_kernels.gpu import Gpu

MOST_SPILL_BYTES = 64
"""Largest spill of a thread in bytes: it stays in the first-level cache."""


class NvidiaTarget(Target):
    """XLA's CUDA compiler and NVIDIA's assembler."""

    platform = "cuda"
    name = "CUDA"
    plugins = ("xla_cuda13",)
    library_name = "xla_cuda_plugin.so"
    columns = (
        Column("registers", lambda kernel, gpu: kernel.registers),
        Column("spilled B", lambda kernel, gpu: kernel.spill_bytes),
        Column("shared KiB", lambda kernel, gpu: kernel.shared_bytes / 1024),
        Column("threads", lambda kernel, gpu: kernel.threads),
        Column("blocks an SM", lambda kernel, gpu: kernel.blocks_per_sm, min),
        Column("16 B loads", lambda kernel, gpu: kernel.wide_loads, min),
        Column("narrower", lambda kernel, gpu: kernel.narrow_loads),
    )

    def load(self) -> None:
        """Load the plugin unless JAX has loaded it, as it does when it looks for any devices."""
        jax.devices("cpu")
        if not xla_client.pjrt_plugin_loaded(self.platform):
            super().load()

    def description(self, gpu: Gpu) -> str:
        """Describe an H200 as CUDA does. XLA plans with four fifths of the memory, as for AMD."""
        memory = (139 << 30) * 5 // 4
        return f"""gpu_device_info {{
            threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
            shared_memory_per_block: 49152 shared_memory_per_block_optin: {gpu.lds_bytes}
            shared_memory_per_core: 233472 core_count: 132 fpus_per_core: 128
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
            memory_bandwidth: 4800000000000 l2_cache_size: 52428800
            clock_rate_ghz: 1.98 device_memory_size: {memory}
            registers_per_core_limit: 65536 registers_per_block_limit: 65536
            cuda_compute_capability {{ major: 9 minor: 0 }} }}
            platform_name: "CUDA" runtime_version {{ major: 13 minor: 0 }}
            dnn_version_info {{ major: 9 minor: 12 }} device_description_str: "{gpu.kind}" """

    @contextmanager
    def kept_files(self) -> Iterator[Path]:
        """Return a context for the assembler's input and log, and the launches."""
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)

    def options(self, folder: Path) -> dict[str, str | bool]:
        """Use a toolkit that keeps the assembler's input, and dump launches (dynamic memory)."""
        return {"xla_dump_to": str(folder), "xla_gpu_cuda_data_dir": str(make_toolkit(folder))}

    def kernels_of(self, arch: str, hlo: str, folder: Path) -> list[SmKernel]:
        """Return the kernels of every assembler run, with static and dynamic shared memory."""
        dynamic = dynamic_memory(folder)
        return [
            kernel for ptx, log in assembled(folder) for kernel in read_kernels(ptx, log, dynamic)
        ]

    def problems(self, kernel: SmKernel, gpu: Gpu) -> list[str]:
        """List excessive spills, excess shared memory and half precision."""
        found = {
            f"{kernel.spill_bytes} B spilled a thread, at most {MOST_SPILL_BYTES} are allowed": (
                kernel.spill_bytes > MOST_SPILL_BYTES
            ),
            f"{kernel.shared_bytes} B of {gpu.lds_bytes} B shared memory": (
                kernel.shared_bytes > gpu.lds_bytes
            ),
            "f16 matrix instructions": any(".f16." in name for name in kernel.matrix),
        }
        return [problem for problem, holds in found.items() if holds]

    def narrow_loads(self, kernel: SmKernel, call: TritonCall) -> dict[int, int]:
        accesses = find_accesses(lines_of(kernel.ptx), call)
        return dict(Counter(access.array for access in accesses if access.width <= NARROW))

    def facts(self, kernel: SmKernel, call: TritonCall, arch: str) -> KernelFacts:
        return read_facts(kernel, call, arch)

    def short_name(self, instruction: str) -> str:
        """Shorten wgmma.bf16.m64n64k16 to wgmma.bf16."""
        return instruction.rpartition(".")[0]
