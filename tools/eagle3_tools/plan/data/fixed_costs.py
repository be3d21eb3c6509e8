"""Costs of a step besides its kernels: launches and sums over devices. Nothing was measured here.

Sources: vllm issue 39080 (all-reduce of MI355X, TP 8: 6.3 to 7.5 us up to 384 KB, 12.9 us of 1.5
MB, hand-written kernels of one or two shots). No time of XLA's own all-reduce on AMD was found: its
all-gather of the same design takes 17 us of 16 KB over two MI355X, RCCL 42 (openxla/xla 44559).
RCCL's 25 us (reported: 20 to 42) and a host's 4 us for a launch (reported: 2 to 4) are guesses.
"""

from eagle3_tools.plan.data.gpus import Gpu

HOST_LAUNCH_S = 4e-6
"""Host time of one launch without command buffers."""
RCCL_S = 25e-6
SHOTS_DEVICES, SHOTS_BYTES = (2, 4, 8), 4 << 20
"""Sums that XLA computes by kernels of its own, in one shot up to 256 KB and two above. It is on by
default for ROCm and Hopper (xla/backends/gpu/runtime/all_reduce.cc; compiled with jax 0.10.2)."""


def launch_seconds(kernel_s: float, gap_s: float, *, command_buffers: bool) -> float:
    """Return the time of a kernel and the gap after it, which command buffers replay."""
    alone = kernel_s + gap_s
    return alone if command_buffers else max(alone, HOST_LAUNCH_S)


def sum_start_seconds(nbytes: float, devices: int, gpu: Gpu) -> float:
    """Return the time of one sum over the devices of a host besides its bytes on the links."""
    own = devices in SHOTS_DEVICES and nbytes <= SHOTS_BYTES
    return gpu.all_reduce.seconds if own else RCCL_S
