"""Vendors whose compilers run here without a GPU."""

from eagle3_tools.aot.amd.target import AmdTarget
from eagle3_tools.aot.nvidia.target import NvidiaTarget
from eagle3_tools.aot.target import Target

TARGETS = AMD, NVIDIA = AmdTarget(), NvidiaTarget()


def target_of(arch: str) -> Target:
    """Return the vendor of an architecture."""
    return AMD if arch.startswith("gfx") else NVIDIA
