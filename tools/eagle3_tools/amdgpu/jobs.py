"""Which programs are executed, and their execution in processes that may crash or hang."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.progress import Progress

from eagle3_tools.amdgpu.cases import emulated_cases
from eagle3_tools.amdgpu.check import POISON, Checked, check_named
from eagle3_tools.amdgpu.check_code import (
    arch_of,
    check_code,
    check_full_size_code,
    full_size_rounds,
)
from eagle3_tools.amdgpu.check_round import check_round, round_name
from eagle3_tools.amdgpu.check_tower import NAME as TOWER
from eagle3_tools.amdgpu.check_tower import check_tower
from eagle3_tools.amdgpu.rounds.small_pair import FORMATS
from eagle3_tools.aot.workers import Failure, run_each
from pallas_kernels.all_cases import all_cases

LIMIT_S = 1800.0
ROUNDS = 3
SHORT_ARCH = "gfx950"


@dataclass(frozen=True)
class Job:
    """What runs on a GPU: `check` with a name, the GPU, and how often, in poisons or rounds."""

    check: Callable[[tuple[str, str, int]], Checked]
    name: str
    arch: str
    times: int


def jobs_for(archs: Sequence[str], only: str, short: bool) -> list[Job]:
    """List what to execute, the long ones first, so that no process ends up alone with one of them.

    Behind what is executed the long form has all of `make rocm-check`, of which the code is read:
    kernels, then rounds at full size. The short form is the first small case of each operation.
    """
    if short:
        firsts = {case.case.operation: case for case in reversed(emulated_cases()) if not case.long}
        return [
            Job(check_named, case.name, SHORT_ARCH, 1)
            for case in firsts.values()
            if only in case.name and SHORT_ARCH in archs
        ]
    rounds = [
        Job(check_round, format, arch, ROUNDS)
        for format in FORMATS
        for arch in archs
        if only in round_name(format, ROUNDS)
    ]
    poisons = len(POISON)
    towers = [Job(check_tower, TOWER, arch, poisons) for arch in archs if only in TOWER]
    cases = [case for case in emulated_cases() if only in case.name]
    return [
        *rounds,
        *towers,
        *(
            Job(check_named, case.name, arch, 1 if case.long else poisons)
            for case in sorted(cases, key=lambda case: not case.long)
            for arch in archs
            if arch in case.case.matrix
        ),
        *(
            Job(check_code, case.name, arch, 0)
            for case in all_cases()
            for arch in archs
            if arch in case.matrix and only in f"code of {case.name}"
        ),
        *(
            Job(check_full_size_code, name, arch_of(name), 0)
            for name in full_size_rounds()
            if arch_of(name) in archs and only in f"code of {name}"
        ),
    ]


def run(jobs: Sequence[Job], processes: int) -> list[Checked]:
    """Checks every job; one that crashes or hangs is a failed one."""
    return [
        Checked(job.name, job.arch, (f"{result.reason} {result.said}".strip(),))
        if isinstance(result, Failure)
        else result
        for job, result in zip(jobs, _shown(_check, jobs, processes), strict=True)
    ]


def _check(job: Job) -> Checked:
    return job.check((job.name, job.arch, job.times))


def _shown(function: Callable[[Any], Any], jobs: Sequence[Job], processes: int) -> Iterator[Any]:
    """Results in order, with a line of progress where somebody looks."""
    with Progress(transient=True) as progress:
        task = progress.add_task("executing", total=len(jobs))
        for result in run_each(function, jobs, processes=processes, limit_s=LIMIT_S):
            progress.advance(task)
            yield result
