"""One program of a draft's training step at its real size: compiled, measured, held to the plan."""

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
    """One program of a pair's step."""

    options: TrainingOptions
    part: Part


@dataclass(frozen=True)
class StepReport:
    """Bytes are those of each device. shared_bytes: of an update's arguments, what is the target's.

    launches: those of a loop that runs as often as the data say count once. collectives: (kind,
    dtype, shape) and how many stand in the program. seconds: of the clock; peak_bytes: of host
    memory.
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
    """Compiles it, for a process of its own, so that peak_bytes is this program's.

    Raises what the plan raises, and RuntimeError where the compiler is not installed.
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
