"""The command eagle3-bench."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from serve.bench import engine_commands, server_commands
from serve.bench.flags import parse_bench_flags

FILE_WIDTH = 140
COMMANDS: Mapping[str, Callable[[argparse.Namespace, Console], int]] = {
    "cpu": engine_commands.measure_cpu,
    "accept": engine_commands.accept,
    "acceptance": engine_commands.acceptance,
    "equal": engine_commands.equal,
    "drafts": engine_commands.drafts,
    "kv-cache": engine_commands.kv_cache,
    "soak": server_commands.soak,
    "choice": server_commands.choice,
    "grammar": engine_commands.grammar,
    "convert": engine_commands.convert,
    "sweep": server_commands.sweep,
    "report": server_commands.report,
    "http": server_commands.http,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 when outputs differ, 2 for flags and files of no use."""
    flags = parse_bench_flags(sys.argv[1:] if argv is None else argv)
    try:
        return COMMANDS[flags.command](flags, _console())
    except (ImportError, OSError, ValueError) as error:
        print(f"eagle3-bench: error: {error}", file=sys.stderr)
        return 2


def _console() -> Console:
    """Tables keep their columns where standard output is a file."""
    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
