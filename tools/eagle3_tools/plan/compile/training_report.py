"""One program of a draft's training step at its real size: compiled and compared with the plan."""

import time
from collections import Counter
from dataclasses import dataclass

from eagle3_tools.aot import compile_program
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.compile import devices
from eagle3_tools.aot.launches import count, launches
from eagle3_tools.plan.compile.compiled_round import device_parts, nbytes
from eagle3_tools.plan.compile.full_size import peak_bytes, refusals
from eagle3_tools.plan.compile.training_problems import training_problems
from eagle3_tools.plan.compile.training_programs import training_programs
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.planner import read_pair
from eagle3_tools.plan.training.model import Part, TrainingPlan
from eagle3_tools.plan.training.options import TrainingOptions


@dataclass(frozen=True)
class Job:
    """One program of a pair's training step."""

    options: TrainingOptions
    part: Part


@dataclass(frozen=True)
class StepReport:
    """Report of a program; bytes are those of each device.

    shared_bytes: of an update's arguments, those that belong to the target. launches: those in a
    loop of data-dependent length count once. collectives: (kind, dtype, shape) and count in the
    program. seconds: elapsed; peak_bytes: of host memory.
    """

    job: Job
    argument_bytes: int
    planned_arguments: int
    shared_bytes: int
    temporary_bytes: int
    planned_temporaries: int
    donated_bytes: int
    alias_bytes: int
    launches: int
    collectives: Counter[Collective]
    failures: tuple[str, ...]
    seconds: float
    peak_bytes: int


def report_program(job: Job) -> StepReport:
    """Compile the program and report on it.

    Run it in a separate process, so that peak_bytes covers this program only. Raises the plan's
    errors, and RuntimeError if the compiler is not installed.
    """
    begin = time.monotonic()
    options, arch = job.options.pair, GPUS[job.options.pair.gpu].arch
    plan, pair = TrainingPlan(job.options, read_pair(options)), read_pair(options)
    there = devices(arch, options.parallel.devices)
    program = training_programs(job.options, pair, arch, there)[job.part]
    with refusals() as refused:
        shapes, donate = program.shapes, program.donate
        compiled = compile_program(arch, program.function, *shapes, donate=donate)
    donated = nbytes(device_parts([shapes[index] for index in donate]))
    frozen = device_parts(shapes[program.frozen])
    problems = training_problems(plan, job.part, compiled, frozen, donated)
    return StepReport(
        job,
        compiled.argument_bytes,
        sum(plan.arguments(job.part).values()),
        nbytes(frozen) if donate else 0,
        compiled.temporary_bytes,
        sum(plan.temporaries(job.part).values()),
        donated,
        compiled.alias_bytes,
        count(launches(compiled.hlo)),
        Counter(collectives(compiled.hlo)),
        tuple(dict.fromkeys([*refused, *problems])),
        round(time.monotonic() - begin, 1),
        peak_bytes(),
    )
