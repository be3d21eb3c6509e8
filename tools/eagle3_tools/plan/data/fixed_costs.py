"""Costs of a step besides its kernels: launches and sums over devices. Nothing was measured here.

Sources: vllm issue 39080 (all-reduce of MI355X, TP 8: 6.3 to 7.5 us up to 384 KB, 12.9 us of 1.5
MB, hand-written kernels of one or two shots); openxla/xla's flags (one shot up to 256 KB, two up to
4 MB, off by default). RCCL's 25 us (reported: 20 to 40) and a host's 4 us for a launch (reported: 2
to 4) are guesses.
"""

from dataclasses import dataclass

from eagle3_tools.plan.data.gpus import Gpu

HOST_LAUNCH_S = 4e-6
"""Host time of one launch without command buffers."""
RCCL_S = 25e-6
SHOTS_MOST_BYTES = 4 << 20
"""Largest sum for which XLA's own kernels are used."""


@dataclass(frozen=True)
class Running:
    """Mode of running a program. command_buffers: the GPU replays launches. shots: XLA's own
    all-reduce kernels replace the library's."""

    command_buffers: bool
    shots: bool

    def launch_seconds(self, kernel_s: float, gap_s: float) -> float:
        """Return the time of a kernel and the gap after it."""
        alone = kernel_s + gap_s
        return alone if self.command_buffers else max(alone, HOST_LAUNCH_S)

    def sum_seconds(self, nbytes: float, devices: int, gpu: Gpu) -> float:
        """Return the time of one sum over devices."""
        if devices == 1:
            return 0.0
        links = min((devices - 1) * gpu.peer_link, gpu.all_links)
        wire = 2 * (devices - 1) / devices * nbytes / links / gpu.all_reduce.of_bandwidth
        own = self.shots and nbytes <= SHOTS_MOST_BYTES
        return (gpu.all_reduce.seconds if own else RCCL_S) + wire
