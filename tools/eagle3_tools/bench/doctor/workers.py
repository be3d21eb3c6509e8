"""Looks at a node in processes of their own, so that a crash or a hang costs one look."""

import os
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from eagle3_tools.aot.workers import run_each

LEFT = 3
"""Exit status of a process whose device failed: what follows in it would fail for that reason."""


class Job(Protocol):
    """A look that can be sent to another process; what it returns comes back."""

    def __call__(self) -> Any: ...


Work = Callable[[Job], Any]


def work(job: Job) -> Any:
    """The job's result. Ends the process where a device fails, its message on standard error."""
    import jax

    try:
        return job()
    except jax.errors.JaxRuntimeError as error:
        print(str(error).strip().splitlines()[0][:300], file=sys.stderr, flush=True)
        os._exit(LEFT)


def each(
    jobs: Sequence[Job], *, limit_s: float, processes: int = 1, work: Work = work
) -> Generator[Any]:
    """The results in the jobs' order, a `Failure` in the place of one that crashed or hung."""
    if jobs:
        yield from run_each(work, jobs, processes=min(processes, len(jobs)), limit_s=limit_s)
