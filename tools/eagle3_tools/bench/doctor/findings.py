"""Findings of `eagle3-bench doctor`, one line each."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "refused", "slow", "WRONG", "FAILED"]
BAD: tuple[Verdict, ...] = ("WRONG", "FAILED")
"""WRONG: a wrong result. FAILED: no result, because of a crash or hang."""


@dataclass(frozen=True)
class Finding:
    """A result: what was checked, what was seen, and advice (empty if nothing is to be done)."""

    verdict: Verdict
    check: str
    subject: str
    seen: str
    advice: str = ""

    @property
    def bad(self) -> bool:
        """True if the result is wrong or missing."""
        return self.verdict in BAD

    def __str__(self) -> str:
        said = f"{self.verdict:<8}{self.check} {self.subject}: {self.seen}"
        return f"{said}; {self.advice}" if self.advice else said


def numbered(devices: list[int]) -> str:
    """Format device indices: `device 3`, `devices 0-7`, `devices 0, 2`."""
    if len(devices) == 1:
        return f"device {devices[0]}"
    ascending = devices == list(range(devices[0], devices[-1] + 1))
    listed = f"{devices[0]}-{devices[-1]}" if ascending else ", ".join(map(str, devices))
    return f"devices {listed}"
