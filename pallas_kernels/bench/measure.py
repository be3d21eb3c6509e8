"""One case on the GPU: is it right, how long does it take, and what do others need."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from pallas_kernels.bench.ceilings import Ceilings
from pallas_kernels.bench.correct import largest_error
from pallas_kernels.bench.timing import Spread, Timed, rotated, time_jax
from pallas_kernels.case import Case


@dataclass(frozen=True)
class Measured:
    """error: largest difference from the contract, as a share of its largest value.

    peers: microseconds of each, or why there are none. refused: why there is no measurement.
    """

    case: str
    operation: str
    error: float | None = None
    right: bool = False
    timed: Timed | None = None
    floor_us: float = 0.0
    peers: dict[str, Spread | str] = field(default_factory=dict)
    refused: str = ""

    @property
    def share(self) -> float:
        """Of the floor; 1 is what nothing can beat."""
        return self.floor_us / self.timed.us.median if self.timed else 0.0

    def against(self, name: str) -> float | None:
        """How many times faster than this peer, if it ran."""
        peer = self.peers.get(name)
        return (
            peer.median / self.timed.us.median if self.timed and isinstance(peer, Spread) else None
        )


def measure(case: Case, ceilings: Ceilings, samples: int) -> Measured:
    """Everything about one case; what fails is recorded as failing."""
    try:
        first = case.example(0)
        error = largest_error(case, first)
        arguments = rotated(first)
        timed = time_jax(case.run, arguments, samples)
    except Exception as failure:  # A GPU refuses in many ways; the other cases go on.
        return Measured(case.name, case.operation, refused=_line(failure))
    fp8 = case.matrix.get("gfx942") == "fp8"
    floor = ceilings.floor_us(case.bytes_moved, case.flops, fp8=fp8)
    peers = {
        name: _attempt(lambda time=time: time(arguments, samples))
        for name, time in _peers(case, first).items()
    }
    if find_spec("torch") is None:
        peers["torch"] = "ImportError: torch is not installed"
    right = error <= case.tolerance
    return Measured(case.name, case.operation, error, right, timed, floor, peers)


def _peers(case: Case, arguments: tuple[Any, ...]) -> dict[str, Callable[..., Spread]]:
    found: dict[str, Callable[..., Spread]] = {
        "XLA": lambda sets, samples: time_jax(case.reference, sets, samples).us
    }
    if find_spec("torch") is None:
        return found
    from pallas_kernels.bench.torch_peers import time_torch, torch_peers

    prepared = torch_peers(case.operation, arguments)
    return found | {
        name: lambda sets, samples, prepare=prepare: time_torch(prepare, sets, samples)
        for name, prepare in prepared.items()
    }


def _attempt(time: Callable[[], Spread]) -> Spread | str:
    try:
        return time()
    except Exception as refusal:
        return _line(refusal)


def _line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:160] if said else ''}"
