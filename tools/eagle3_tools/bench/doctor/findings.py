"""What doctor says: one finding, one line."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "refused", "slow", "WRONG", "FAILED"]
BAD: tuple[Verdict, ...] = ("WRONG", "FAILED")
"""WRONG: another result. FAILED: none, because something crashed or hung."""


@dataclass(frozen=True)
class Finding:
    """check: what was looked at; subject: which part of it; seen: what came out; advice: what it
    means and what to do next, empty where there is nothing to do."""

    verdict: Verdict
    check: str
    subject: str
    seen: str
    advice: str = ""

    @property
    def bad(self) -> bool:
        """Whether something is wrong."""
        return self.verdict in BAD

    def __str__(self) -> str:
        said = f"{self.verdict:<8}{self.check} {self.subject}: {self.seen}"
        return f"{said}; {self.advice}" if self.advice else said


def numbered(devices: list[int]) -> str:
    """`device 3`, `devices 0-7`, `devices 0, 2`."""
    if len(devices) == 1:
        return f"device {devices[0]}"
    ascending = devices == list(range(devices[0], devices[-1] + 1))
    listed = f"{devices[0]}-{devices[-1]}" if ascending else ", ".join(map(str, devices))
    return f"devices {listed}"
