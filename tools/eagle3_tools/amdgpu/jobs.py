"""List the programs to check, and run them in processes that may crash or hang."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan

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
from eagle3_tools.checks.check import Check
from eagle3_tools.checks.pool import Failure
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import AMD

LIMIT_S = 1800.0
ROUNDS = 3
SHORT_ARCH = "gfx950"


@dataclass(frozen=True)
class Job:
    """A check with its arguments: name, GPU, and number of poisons or rounds."""

    check: Callable[[str, str, int], Checked]
    name: str
    arch: str
    times: int
    title: str
    """Name in reports."""


def jobs_for(archs: Sequence[str], only: str, short: bool) -> list[Job]:
    """List the jobs, long ones first, so that no process ends up alone with one of them.

    After the emulated programs, the long form checks the code of everything that `make rocm-check`
    compiles: kernels, then full-size rounds. The short form has one small case of each operation.
    """
    jobs = _short_jobs() if short else _long_jobs()
    return [job for job in jobs if only in job.title and job.arch in archs]


def _short_jobs() -> list[Job]:
    firsts = {case.case.operation: case for case in reversed(emulated_cases()) if not case.long}
    return [Job(check_named, c.name, SHORT_ARCH, 1, c.name) for c in firsts.values()]


def _long_jobs() -> list[Job]:
    poisons, cases = len(POISON), sorted(emulated_cases(), key=lambda case: not case.long)
    rounds = {format: round_name(format, ROUNDS) for format in FORMATS}
    return [
        *(Job(check_round, f, arch, ROUNDS, rounds[f]) for f in FORMATS for arch in AMD),
        *(Job(check_tower, TOWER, arch, poisons, TOWER) for arch in AMD),
        *(
            Job(check_named, case.name, arch, 1 if case.long else poisons, case.name)
            for case in cases
            for arch in case.case.matrix
        ),
        *(
            Job(check_code, case.name, arch, 0, f"code of {case.name}")
            for case in all_cases()
            for arch in case.matrix
        ),
        *(
            Job(check_full_size_code, name, arch_of(name), 0, f"code of {name}")
            for name in full_size_rounds()
        ),
    ]


def _run(job: Job) -> Checked:
    return job.check(job.name, job.arch, job.times)


PROGRAMS = Check[Job, Checked](
    name="Executed by the emulator",
    build=lambda flags: jobs_for(flags.arch or AMD, flags.only, flags.short),
    run=_run,
    expect=lambda found: found.problems,
    label=lambda job: f"{job.title} on {job.arch}",
    columns={
        "case": lambda found: found.case,
        "GPU": lambda found: found.arch,
        "workgroups": lambda found: f"{found.workgroups}",
        "wave instr.": lambda found: f"{found.instructions.total()}",
        "of reference": lambda found: _error(found.reference, found.allowed[0]),
        "of interpreted": lambda found: _error(found.interpreted, found.allowed[1]),
        "library": lambda found: f"{found.library_share:.0%}",
        "s": lambda found: f"{found.seconds:.1f}",
        "": lambda found: "[red]FAILED[/red]" if found.problems else "ok",
    },
    reuse=True,
)


def run(jobs: Sequence[Job], processes: int) -> list[Checked]:
    """Run every job; one that crashes or hangs becomes a failed check."""
    return [
        Checked(job.title, job.arch, (f"{result}",)) if isinstance(result, Failure) else result
        for job, result in zip(jobs, PROGRAMS.results(jobs, LIMIT_S, processes), strict=True)
    ]


def _error(error: float, most: float) -> str:
    return "" if isnan(most) else f"{error:.1e} ({most:g})"
