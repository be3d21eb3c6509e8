"""Findings of `eagle3-bench doctor`, one line each."""

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from eagle3_tools.checks.pool import run_each

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


LEFT = 3
"""Exit status of a process whose device failed, because later jobs in it would fail too."""


class Job(Protocol):
    """A picklable check, called in another process; its result is sent back."""

    def __call__(self) -> Any: ...


Work = Callable[[Job], Any]
Run = Callable[..., Iterator[Any]]
"""`each` with its limit and its worker: takes jobs and a number of processes."""


def work(job: Job) -> Any:
    """Return the job's result. On a device failure, print the message and end the process."""
    import jax

    try:
        return job()
    except jax.errors.JaxRuntimeError as error:
        print(str(error).strip().splitlines()[0][:300], file=sys.stderr, flush=True)
        os._exit(LEFT)


def each(
    jobs: Sequence[Job], *, limit_s: float, processes: int = 1, work: Work = work
) -> Generator[Any]:
    """Yield the results in the order of jobs, with a `Failure` for a job that crashed or hung."""
    if jobs:
        yield from run_each(work, jobs, processes=min(processes, len(jobs)), limit_s=limit_s)
