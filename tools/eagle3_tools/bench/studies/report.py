"""Show results of sweeps as tables, figures and an HTML page."""

import argparse
from pathlib import Path

from rich.console import Console

from eagle3_tools.bench.common.flags import use_embedded_pair
from eagle3_tools.bench.studies.sweep import print_result


def add_flags(parser: argparse.ArgumentParser) -> None:
    use_embedded_pair(parser)
    parser.add_argument("results", nargs="+", metavar="DIR", help="--output of sweeps")
    parser.add_argument(
        "--output", metavar="DIR", help="directory of the page and figures; default: the first DIR"
    )


def run(flags: argparse.Namespace, console: Console) -> int:
    """Write the page and print the sweep's tables; raise ImportError without the extra `plot`."""
    from eagle3_tools.bench.sweep.report import read_results, write_report

    results = read_results(flags.results)
    page = write_report(results, Path(flags.output or flags.results[0]))
    print_result(console, results)
    console.print(f"{page}")
    return 0
