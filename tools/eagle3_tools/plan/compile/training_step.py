"""python -m eagle3_tools.plan.compile.training_step FOLDER: compile a training step at full size.

FOLDER has published config.json files (tests/oracles/published). Both programs of a step, the
target's pass over a packed row and the draft's update, are compiled for eight MI355X. Needs the
extra `rocm`, gcc and binutils, no GPU. Exit status 1 if one does not compile or does not meet its
expectations.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from eagle3_tools.aot.workers import run_each
from eagle3_tools.plan.cli import FILE_WIDTH
from eagle3_tools.plan.compile.flags import read_flags
from eagle3_tools.plan.compile.full_size_table import LIMIT_S
from eagle3_tools.plan.compile.training_report import Job, report_program
from eagle3_tools.plan.compile.training_table import print_steps
from eagle3_tools.plan.training.options import TrainingOptions, build_parser, read_options

TARGETS = ("kimi-k2.5", "kimi-k2.5-mxfp4")
DRAFTS = ("kimi-k2.5-eagle3", "kimi-k2.5-eagle3-mla")


def main(argv: Sequence[str] | None = None) -> int:
    flags = read_flags("training_step", __doc__, LIMIT_S, argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    jobs, results = list(step_jobs(flags.folder)), []
    for job in jobs:  # One process for each job.
        results += run_each(report_program, [job], processes=1, limit_s=flags.limit)
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    return 0 if print_steps(console, jobs, results) else 1


def step_jobs(folder: Path) -> Iterator[Job]:
    """Yield the programs of all four pairs. A target's pass does not depend on the draft, nor an
    update on the target."""
    yield from (Job(step_options(folder, target, DRAFTS[0]), "features") for target in TARGETS)
    yield from (Job(step_options(folder, TARGETS[0], draft), "update") for draft in DRAFTS)


def step_options(folder: Path, target: str, draft: str) -> TrainingOptions:
    """Return options of `eagle3-plan train`: 8 MI355X, a row of 20,480 tokens, chunks of 2048."""
    models = [f"--model={folder / target}.config.json", f"--draft={folder / draft}.config.json"]
    return read_options(build_parser().parse_args(models))


if __name__ == "__main__":
    sys.exit(main())
