"""Time of a kernel in three numbers."""

from dataclasses import dataclass
from typing import Literal

KernelKind = Literal["gemm", "experts", "experts_int4", "attention", "small"]


@dataclass(frozen=True)
class Tuned:
    """Time of a tuned kernel: seconds + max(bytes / (of_bandwidth x HBM), FLOP / (of_peak x peak)).

    of_bandwidth, of_peak: fractions of the datasheet's rates that it reaches.
    """

    seconds: float
    of_bandwidth: float
    of_peak: float
