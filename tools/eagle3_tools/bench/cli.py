"""The command eagle3-bench; each subcommand is a module of eagle3_tools.bench.studies."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from convert.command_line.parser import PRINT_COMPLETION, OneLineParser, add_about_flags
from convert.command_line.stopping import (
    Stopped,
    exit_at_once,
    exit_on_signals,
    raise_on_signals,
    status_of,
)
from eagle3_tools.bench.common.flags import check_flags
from eagle3_tools.checks.check import console_of
from serve.options.checkpoint import DEFAULTS, read_load_options

PROG = "eagle3-bench"
EXAMPLES = {
    "cpu": "--json cpu.json",
    "accept": "/models/Kimi-K2.5 --draft /models/kimi-k2.5-eagle3 --num-speculative-tokens 3",
    "equal": "--demo --quick",
    "soak": "--seconds 600",
    "sweep": "--url http://127.0.0.1:8000 --lengths 1024/1024 --concurrency 4 8 --output sweep",
    "doctor": "--json doctor.json",
    "report": "sweep --output report",
    "gpu": "--json gpu.json",
}
"""Command -> example flags that work together."""
STUDIES = {
    "cpu": "all ratios of the CPU engine, one pinned core",
    "accept": "accept length on held-out prompts",
    "equal": "count identical outputs; status 1 if any fails",
    "soak": "random traffic and cancels; status 1 on a leak",
    "sweep": "load on any OpenAI server, or ours started",
    "doctor": "a new machine: devices, kernels, links, rounds",
    "report": "sweeps as tables, figures and an HTML page",
    "gpu": "the embedded pair's round, loop and tokens on a GPU",
}
"""Command -> help. Its module is imported for that command only, because most import JAX.

It has `add_flags(parser)` and `run(flags, console)`, which returns the exit status.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, 1 if outputs differ, 2 for unusable flags or files, 130 or 143 if interrupted."""
    with exit_on_signals(PROG):
        flags = parse_bench_flags(sys.argv[1:] if argv is None else argv)
    with raise_on_signals():
        try:
            return flags.run(flags, console_of(140))
        except (ImportError, OSError, ValueError) as error:
            print(f"{PROG}: error: {error}", file=sys.stderr)
            return 2
        except Stopped as stopped:
            exit_at_once(PROG, status_of(stopped))


def parse_bench_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; on an error, exit with status 2 and a one-line message."""
    parser = _build_parser(argv)
    flags = parser.parse_args(argv)
    try:
        flags.check(flags)
        flags.load = read_load_options(flags, has_draft=True) if flags.loads else DEFAULTS
    except ValueError as error:
        parser.error(str(error))
    return flags


def _build_parser(argv: Sequence[str]) -> OneLineParser:
    """Build the parser; only the command in `argv` gets flags (all if empty or for completion)."""
    parser = OneLineParser(
        prog=PROG,
        description="Measures this engine.",
        example="eagle3-bench accept --demo --num-speculative-tokens 3 --prompts 2",
    )
    parser.set_defaults(loads=False, check=check_flags)
    add_about_flags(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in STUDIES.items():
        example = f"eagle3-bench {name} {EXAMPLES[name]}"
        command = commands.add_parser(name, help=text, example=example)
        if not argv or argv[0] == name or argv[0].startswith(PRINT_COMPLETION):
            study = import_module(f"eagle3_tools.bench.studies.{name}")
            study.add_flags(command)
            command.set_defaults(run=study.run)
    return parser
