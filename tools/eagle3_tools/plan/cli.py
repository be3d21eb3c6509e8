"""The command eagle3-plan."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from convert.command_line.stopping import (
    Stopped,
    exit_at_once,
    exit_on_signals,
    raise_on_signals,
    status_of,
)
from eagle3_tools.checks.check import console_of
from eagle3_tools.plan.options import PROG, PlanOptions, build_parser, read_options
from eagle3_tools.plan.training.options import build_parser as build_training_parser
from eagle3_tools.plan.training.options import read_options as read_training_options
from serve.options.parallel import notify_of_interleaving


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status. 0; 1 if a compiled program does not meet its
    expectations; 2 for invalid flags or files, or if the pair does not fit; 130 or 143 if the
    command was stopped."""
    given = sys.argv[1:] if argv is None else list(argv)
    training = given[:1] == ["train"]
    flags = build_training_parser().parse_args(given[1:]) if training else None
    flags = flags or build_parser().parse_args(given)
    # Nothing runs on a device: there are only shapes.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    console = console_of()
    try:
        with exit_on_signals(PROG):
            return _train(console, flags) if training else _run(console, flags)
    except (ImportError, OSError, ValueError) as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return 2


def _run(console: Console, flags: Namespace) -> int:
    size, parts = flags.kv_cache_interleave_size, flags.decode_context_parallel_size
    notify_of_interleaving(size, parts, flags.page_size, partial(print, file=sys.stderr))
    if flags.constants:
        from eagle3_tools.plan.tables import print_constants

        print_constants(console)
    elif flags.kernels is not None:
        _kernels(console, flags.kernels, flags.before)
    elif flags.compile:
        return _compile(console, read_options(flags))
    else:
        _plan(console, read_options(flags), flags.json, flags.plot)
    return 0


def _train(console: Console, flags: Namespace) -> int:
    from eagle3_tools.plan.planner import read_pair
    from eagle3_tools.plan.training.model import TrainingPlan
    from eagle3_tools.plan.training.table import print_training

    options = read_training_options(flags)
    print_training(console, TrainingPlan(options, read_pair(options.pair)))
    return 0


def _kernels(console: Console, only: str, before: Path | None) -> None:
    from eagle3_tools.plan.kernels.changes import print_changes
    from eagle3_tools.plan.kernels.tables import print_kernels

    if before is None:
        print_kernels(console, only)
    else:
        print_changes(console, only, before)


def _compile(console: Console, options: PlanOptions) -> int:
    from eagle3_tools.aot.targets import AMD
    from eagle3_tools.plan.compile.full_size_pairs import ROUNDS, print_rounds
    from eagle3_tools.plan.compile.report import LIMIT_S
    from eagle3_tools.plan.planner import make_plan, read_pair

    if not AMD.is_installed():
        raise ImportError(AMD.not_installed)
    make_plan(options, read_pair(options))  # Report a pair that does not fit before compiling.
    with raise_on_signals():  # Leaves no compiler process running.
        try:
            results = ROUNDS.results([options], LIMIT_S)
        except Stopped as stopped:
            exit_at_once(PROG, status_of(stopped))
    return 0 if print_rounds(console, [options], results) else 1


def _plan(console: Console, options: PlanOptions, json: Path | None, plot: Path | None) -> None:
    from eagle3_tools.plan.model.published_rows import compare_published
    from eagle3_tools.plan.planner import make_plan, read_pair
    from eagle3_tools.plan.plot import check_plot, write_plot
    from eagle3_tools.plan.record import write_plan
    from eagle3_tools.plan.tables import print_plan

    if plot is not None:
        check_plot(plot)
    pair = read_pair(options)
    plan, compared = make_plan(options, pair), compare_published(type(pair.target.config))
    if json is not None:
        write_plan(json, plan, compared)
    if plot is not None:
        write_plot(plot, plan, compared)
    print_plan(console, plan, compared)


if __name__ == "__main__":
    sys.exit(main())
