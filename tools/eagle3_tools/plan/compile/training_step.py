"""python -m eagle3_tools.plan.compile.training_step FOLDER: compile a training step at full size.

FOLDER has published config.json files (tests/oracles/published). Both programs of a step, the
target's pass over a packed row and the draft's update, are compiled for eight MI355X. Needs the
extra `rocm`, gcc and binutils, no GPU. Exit status 1 if one does not compile or does not meet its
expectations.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import jax
from rich.console import Console

from convert.hub.source import Source
from eagle3_jax.training.distillation import GPU_BLOCK
from eagle3_tools.aot import Program, compile_program
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.compile import devices
from eagle3_tools.aot.expectations import copy_problems
from eagle3_tools.checks.check import Check, print_lines, table_of
from eagle3_tools.checks.pool import Failure
from eagle3_tools.plan.compile.compiled_round import device_parts, nbytes
from eagle3_tools.plan.compile.report import (
    COLUMNS,
    GIB,
    SUMS_A_LAYER,
    ProgramReport,
    large_collectives,
    refusals,
    report_of,
    run_command,
    shared_problems,
    sums_of,
    traffic,
)
from eagle3_tools.plan.compile.training_programs import training_programs
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.planner import read_pair
from eagle3_tools.plan.training.model import Part, TrainingPlan
from eagle3_tools.plan.training.options import TrainingOptions, build_parser, read_options
from eagle3_tools.plan.training.table import PROGRAMS

TARGETS = ("kimi-k2.5", "kimi-k2.5-mxfp4")
DRAFTS = ("kimi-k2.5-eagle3", "kimi-k2.5-eagle3-mla")
MOST_GAPS = 0.05
"""Largest relative excess of temporaries over the plan: the compiler leaves gaps between arrays."""


@dataclass(frozen=True)
class Job:
    """One program of a pair's training step."""

    options: TrainingOptions
    part: Part


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("training_step", __doc__, STEPS, argv, print_steps)


def step_jobs(folder: Path) -> Iterator[Job]:
    """Yield the programs of all four pairs. A target's pass does not depend on the draft, nor an
    update on the target."""
    yield from (Job(step_options(folder, target, DRAFTS[0]), "features") for target in TARGETS)
    yield from (Job(step_options(folder, TARGETS[0], draft), "update") for draft in DRAFTS)


def step_options(folder: Path, target: str, draft: str) -> TrainingOptions:
    """Return options of `eagle3-plan train`: 8 MI355X, a row of 20,480 tokens, chunks of 2048."""
    models = [f"--model={folder / target}.config.json", f"--draft={folder / draft}.config.json"]
    return read_options(build_parser().parse_args(models))


def report_program(job: Job) -> ProgramReport:
    """Compile the program and report on it. Raises the plan's errors, and RuntimeError if the
    compiler is not installed."""
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
    planned = plan.arguments(job.part), plan.temporaries(job.part)
    arguments, temporaries = (sum(sizes.values()) for sizes in planned)
    return report_of(
        job,
        compiled,
        [*refused, *training_problems(plan, job.part, compiled, frozen, donated)],
        begin=begin,
        donated_bytes=donated,
        planned={"arguments": arguments, "temporaries": temporaries},
        # Of an update's arguments, those that belong to the target.
        figures={"shared": nbytes(frozen) if donate else 0},
    )


def training_problems(
    plan: TrainingPlan,
    part: Part,
    program: Program,
    weights: Sequence[jax.ShapeDtypeStruct],
    donated_bytes: int,
) -> Iterator[str]:
    """Yield every violation. weights: a device's part of the weights that are not updated."""
    arguments = sum(plan.arguments(part).values())
    yield from shared_problems(
        program, donated_bytes=donated_bytes, arguments=arguments, temporaries=sys.maxsize
    )
    planned = sum(plan.temporaries(part).values())
    if program.temporary_bytes > (1 + MOST_GAPS) * planned:
        yield f"{program.temporary_bytes:,} B of temporaries, {planned:,} were planned"
    if part == "features":  # An update's states and gradients are as large as the target's head.
        yield from copy_problems(program, weights, {plan.options.rows, plan.options.chunk})
    yield from collective_problems(plan, part, collectives(program.hlo))


def collective_problems(
    plan: TrainingPlan, part: Part, found: Sequence[Collective]
) -> Iterator[str]:
    """Yield logits, sums of hidden states in the target's pass beyond two a layer and one an
    embedding, and other large collectives except an update's sums over the draft's widths."""
    config = plan.pair.target.config
    most = SUMS_A_LAYER * config.num_hidden_layers + 1 if part == "features" else None
    known, too_many = sums_of(found, config.hidden_size, most)
    yield from too_many
    of_update = _sums_of_an_update(plan, found) if part == "update" else ()
    yield from large_collectives(found, known | set(of_update))


def _sums_of_an_update(plan: TrainingPlan, found: Sequence[Collective]) -> Iterator[Collective]:
    """Yield sums of states and gradients that all devices hold: a layer's input, latents of the
    step's tokens, and the states of all steps whose logits a block compares."""
    draft = plan.pair.draft
    assert draft is not None, "a draft is trained"
    hidden, latent = draft.config.hidden_size, draft.config.latent_attention
    widths = {hidden, 2 * hidden} | ({latent.q_lora_rank, latent.latent_dim} if latent else set())
    compared = plan.options.rows * GPU_BLOCK * plan.options.unroll * hidden
    sizes = {compared, *(plan.tokens * width for width in widths if width)}
    yield from (one for one in found if one.kind == "all-reduce" and prod(one.shape) in sizes)


def name_of(job: Job) -> str:
    """Return a program's name: the target's pass, kimi-k2.5; the update, kimi-k2.5-eagle3."""
    pair = job.options.pair
    model = pair.model if job.part == "features" else pair.draft
    return f"{PROGRAMS[job.part]}, {_short(model)}"


def held_bytes(features: ProgramReport, update: ProgramReport) -> int:
    """Return the bytes on a device while the larger of a pair's programs runs: the arguments of
    both, shared ones once, and its temporaries."""
    arguments = features.argument_bytes + update.argument_bytes - update.figures["shared"]
    return arguments + max(features.temporary_bytes, update.temporary_bytes)


def usable_bytes(job: Job) -> int:
    """Return the bytes that serving may use."""
    options = job.options.pair
    return int(GPUS[options.gpu].memory * options.gpu_memory_utilization)


def _short(source: Source | None) -> str:
    assert source is not None, "a pair has both"
    return source.last_name.removesuffix(".json").removesuffix(".config")


STEPS = Check[Job, ProgramReport](
    name="A training step on 8 MI355X, 1 x 20,480 tokens, 4 steps of the chain: each device",
    build=lambda flags: step_jobs(flags.folder),
    run=report_program,
    label=name_of,
    heads={"program": name_of},
    columns={name: cell for name, cell in COLUMNS.items() if name != "launches\na layer"},
)


def print_steps(
    console: Console, jobs: Sequence[Job], results: Sequence[ProgramReport | Failure]
) -> bool:
    """Print a row for each program and pair, then collectives and failures; return whether there
    are no failures."""
    reports = [result for result in results if isinstance(result, ProgramReport)]
    pairs = list(_paired(reports))
    console.print(STEPS.table(jobs, results))
    console.print(
        table_of(
            "What a device holds while the larger of both runs",
            {
                "target": lambda pair: _short(pair[0].job.options.pair.model),
                "draft": lambda pair: _short(pair[1].job.options.pair.draft),
                "GiB": lambda pair: f"{held_bytes(*pair) / GIB:.1f}",
                "of": lambda pair: f"{usable_bytes(pair[1].job) / GIB:.1f}",
            },
            pairs,
            left=("target", "draft"),
        )
    )
    for report in reports:
        print_lines(console, [f"\n{name_of(report.job)}:", *traffic(report.collectives)])
    failures = [*STEPS.failures(jobs, results), *_too_large(pairs)]
    print_lines(console, failures)
    return not failures


def _paired(reports: Sequence[ProgramReport]) -> Iterator[tuple[ProgramReport, ProgramReport]]:
    """Yield every target with every draft: targets give the update the same shapes."""
    for features in reports:
        for update in reports:
            if (features.job.part, update.job.part) == ("features", "update"):
                yield features, update


def _too_large(pairs: Sequence[tuple[ProgramReport, ProgramReport]]) -> Iterator[str]:
    for features, update in pairs:
        if (held := held_bytes(features, update)) > usable_bytes(update.job):
            names = f"{name_of(features.job)} and {name_of(update.job)}"
            yield f"FAILED {names}: {held:,} B, more than {usable_bytes(update.job):,}"


if __name__ == "__main__":
    sys.exit(main())
