"""What a step pays besides its kernels: launches and sums over devices. Nothing was measured here.

Sources: vllm issue 39080 (all-reduce of MI355X, TP 8: 6.3 to 7.5 us up to 384 KB, 12.9 us of
1.5 MB, hand-written kernels of one or two shots); openxla/xla's flags (one shot up to 256 KB, two
up to 4 MB, off by default). RCCL's 25 us (said: 20 to 40) and a host's 4 us for a launch (said: 2
to 4) are guesses.
"""

from dataclasses import dataclass

from eagle3_tools.plan.data.gpus import Gpu

HOST_LAUNCH_S = 4e-6
"""What a host needs for one launch without command buffers."""
RCCL_S = 25e-6
SHOTS_MOST_BYTES = 4 << 20
"""Beyond, XLA's own kernels are not taken."""


@dataclass(frozen=True)
class Running:
    """How a program is run. command_buffers: launches are replayed by the GPU; shots: XLA's own
    all-reduce kernels in the place of the library's."""

    command_buffers: bool
    shots: bool

    def launch_seconds(self, kernel_s: float, gap_s: float) -> float:
        """A kernel with what is between it and the next one."""
        alone = kernel_s + gap_s
        return alone if self.command_buffers else max(alone, HOST_LAUNCH_S)

    def sum_seconds(self, nbytes: float, devices: int, gpu: Gpu) -> float:
        """One sum over devices."""
        if devices == 1:
            return 0.0
        links = min((devices - 1) * gpu.peer_link, gpu.all_links)
        wire = 2 * (devices - 1) / devices * nbytes / links / gpu.all_reduce.of_bandwidth
        own = self.shots and nbytes <= SHOTS_MOST_BYTES
        return (gpu.all_reduce.seconds if own else RCCL_S) + wire
