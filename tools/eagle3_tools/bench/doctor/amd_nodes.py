"""Faults of AMD nodes that public reports describe. Each is one line on a node that has it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eagle3_tools.bench.doctor.findings import Finding
from eagle3_tools.bench.doctor.node import Node

LEAST_MEC = 177
"""MEC firmware from which RCCL can reclaim scratch memory."""


@dataclass(frozen=True)
class KnownFault:
    """A row of the table. `found` returns what the node has, or None without the fault."""

    subject: str
    found: Callable[[Node], str | None]
    why: str
    remedy: str


def _old_rocm(node: Node) -> str | None:
    off = re.search("--xla_gpu_enable_command_buffer=($| )", node.variables.get("XLA_FLAGS", ""))
    return f"{node.release}, below 7.2.1" if () < node.rocm < (7, 2, 1) and not off else None


def _old_mec(node: Node) -> str | None:
    old = [version for version in node.mec if version < LEAST_MEC]
    reclaims = node.variables.get("HSA_NO_SCRATCH_RECLAIM") != "1"
    return f"MEC {min(old)}, below {LEAST_MEC}" if old and reclaims else None


def _numa_balancing(node: Node) -> str | None:
    return "on" if node.numa_balancing not in ("", "0") else None


def _slow_products(node: Node) -> str | None:
    affected = "gfx942" in node.archs and node.rocm >= (7, 1, 1)
    return f"ROCm {node.release} on gfx942" if affected else None


def _few_channels(node: Node) -> str | None:
    affected = "gfx950" in node.archs and (7, 14) <= node.rocm < (10,)
    wide = node.variables.get("NCCL_MAX_NCHANNELS") == "64"
    return f"ROCm {node.release} on gfx950" if affected and not wide else None


KNOWN_FAULTS = (
    KnownFault(
        "ROCm",
        _old_rocm,
        "ROCr may crash when it replays command buffers (openxla/xla 40405, TheRock 7891)",
        "install ROCm 7.2.1 or newer, or set XLA_FLAGS=--xla_gpu_enable_command_buffer=",
    ),
    KnownFault(
        "firmware",
        _old_mec,
        "RCCL cannot reclaim scratch memory and may crash (InferenceX 936, rccl 1867)",
        "update amdgpu and its firmware; until then set HSA_NO_SCRATCH_RECLAIM=1",
    ),
    KnownFault(
        "NUMA balancing",
        _numa_balancing,
        "the kernel moves pages that GPUs and collectives use, which costs time (rccl 696)",
        "sudo sysctl kernel.numa_balancing=0",
    ),
    KnownFault(
        "hipBLASLt",
        _slow_products,
        "large float8 and bfloat16 products may be 10% slower, as in prefill (TheRock 7889, 7892)",
        "take a ROCm whose release notes list these as resolved",
    ),
    KnownFault(
        "RCCL over several nodes",
        _few_channels,
        "it uses 48 channels there, not 64, which slows sums (rocm-systems 9764)",
        "with several nodes set NCCL_MAX_NCHANNELS=64 and NCCL_MIN_NCHANNELS=64, or use ROCm 10",
    ),
)


def known_faults(node: Node) -> Iterator[Finding]:
    """Yield a note for each known fault that the node has; none without AMD GPUs."""
    for fault in KNOWN_FAULTS if any(arch.startswith("gfx") for arch in node.archs) else ():
        if (found := fault.found(node)) is not None:
            advice = f"{fault.why}: {fault.remedy}"
            yield Finding("note", "known fault", fault.subject, found, advice)
