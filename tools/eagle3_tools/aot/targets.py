"""The vendors whose compilers run here without a GPU."""

from pallas_kernels.aot.amd.target import AmdTarget
from pallas_kernels.aot.nvidia.target import NvidiaTarget
from pallas_kernels.aot.target import Target

TARGETS = AMD, NVIDIA = AmdTarget(), NvidiaTarget()


def target_of(arch: str) -> Target:
    """The vendor of an architecture."""
    return AMD if arch.startswith("gfx") else NVIDIA
