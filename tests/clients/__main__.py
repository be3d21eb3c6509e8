"""Drives eagle3-serve --demo with the clients people use, unmodified, and says what they say."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from clients.all_clients import CLIENTS
from clients.client import Client
from clients.environments import make_environment
from clients.inferencex_client import inferencex
from clients.runs import Run, demo_server, run_client


def main() -> int:
    """Returns the exit status: 1 when a request of any client did not complete."""
    flags = _flags()
    chosen = _choose(flags)
    with (
        TemporaryDirectory() as scratch,
        demo_server(Path(scratch), "--max-num-seqs", "8") as server,
    ):
        runs = []
        for number, client in enumerate(chosen):
            programs = make_environment(client.environment, flags.environments.resolve())
            runs.append(run_client(client, server, programs, Path(scratch) / f"{number}"))
            print(_line(runs[-1]), flush=True)
    return 0 if runs and all(run.good for run in runs) else 1


def _choose(flags: argparse.Namespace) -> list[Client]:
    offered = [*CLIENTS, *([inferencex(flags.inferencex.resolve())] if flags.inferencex else [])]
    return [client for client in offered if all(word in client.name for word in flags.words)]


def _line(run: Run) -> str:
    said = f"{run.counts.completed} / {run.counts.failed}" if run.counts else "no result"
    return f"| {run.name} | {run.version} | {said} | {run.seconds:.0f} s |"


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m clients", description=__doc__)
    parser.add_argument("words", nargs="*", help="run only clients with all these in their names")
    parser.add_argument(
        "--environments", type=Path, default=Path(".venv-clients"), help="where they are installed"
    )
    parser.add_argument("--inferencex", type=Path, metavar="DIR", help="a checkout of it")
    return parser.parse_args()


sys.exit(main())
