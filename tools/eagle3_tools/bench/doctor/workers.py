"""Run checks in separate processes, so that a crash or hang costs only one check."""

import os
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from eagle3_tools.checks.pool import run_each

LEFT = 3
"""Exit status of a process whose device failed, because later jobs in it would fail too."""


class Job(Protocol):
    """A picklable check, called in another process; its result is sent back."""

    def __call__(self) -> Any: ...


Work = Callable[[Job], Any]


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
