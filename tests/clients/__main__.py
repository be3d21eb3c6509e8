"""Drives eagle3-serve --demo with the clients people use, unmodified, and says what they say."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from clients import lm_eval_client, load_clients, packages, seeing_clients
from clients.coding_agents import AGENTS, run_agent
from clients.environments import make_environment
from clients.load_clients import inferencex
from clients.routers import ROUTERS, run_router
from clients.runs import Run, demo_server, run_client
from clients.scripted_model import scripted_server

FLAGS = ("--max-num-seqs", "8", "--served-model-name", "eagle3-demo", packages.DEFAULT_MODEL)
CLIENTS = (*packages.CLIENTS, *lm_eval_client.CLIENTS, *load_clients.CLIENTS)


def main() -> int:
    """Returns the exit status: 1 when a request of any client did not complete."""
    flags = _flags()
    runs = []
    for run in _runs(flags):
        said = f"{run.counts.completed} | {run.counts.failed}" if run.counts else "no result |"
        print(f"| {run.name} | {run.version} | {said} |", flush=True)
        runs.append(run)
    return 0 if runs and all(run.good for run in runs) else 1


def _runs(flags: argparse.Namespace) -> Iterator[Run]:
    with TemporaryDirectory() as name:
        yield from _over_a_script(flags, Path(name))
        yield from _over_the_demo(flags, Path(name))
        yield from _over_pictures(flags, Path(name) / "seeing")


def _over_a_script(flags: argparse.Namespace, scratch: Path) -> Iterator[Run]:
    """Run the clients that need a model that calls tools."""
    environments = flags.environments.resolve()
    for client in packages.OF_A_SCRIPT:
        if _wanted(client.name, flags):
            programs = make_environment(client.environment, environments)
            with scripted_server() as server:
                yield run_client(client, server, programs, scratch / client.distribution)
    if _wanted("@ai-sdk/openai", flags):
        with scripted_server() as server:
            yield run_client(packages.ai_sdk(environments), server, Path(), scratch / "ai-sdk")
    for number, agent in enumerate(AGENTS):
        if _wanted(agent.name, flags):
            yield run_agent(agent, environments, scratch / f"agent{number}")


def _over_the_demo(flags: argparse.Namespace, scratch: Path) -> Iterator[Run]:
    environments = flags.environments.resolve()
    clients = [*CLIENTS, *([inferencex(flags.inferencex.resolve())] if flags.inferencex else [])]
    clients = [client for client in clients if _wanted(client.name, flags)]
    routers = [router for router in ROUTERS if _wanted(router.distribution, flags)]
    needed = 1 + bool(routers) if clients or routers else 0
    with ExitStack() as stack:
        servers = [
            stack.enter_context(demo_server(scratch / f"server{n}", *FLAGS, url=url))
            for n, url in zip(range(needed), [*flags.url, None, None], strict=False)
        ]
        for number, client in enumerate(clients):
            programs = make_environment(client.environment, environments)
            yield run_client(client, servers[0], programs, scratch / f"{number}")
        for router in routers:
            yield run_router(router, servers, environments, scratch / router.distribution)


def _over_pictures(flags: argparse.Namespace, scratch: Path) -> Iterator[Run]:
    clients = [client for client in seeing_clients.CLIENTS if _wanted(client.name, flags)]
    if not clients:
        return
    with demo_server(scratch, *FLAGS, sees=True) as server:
        for number, client in enumerate(clients):
            programs = make_environment(client.environment, flags.environments.resolve())
            yield run_client(client, server, programs, scratch / f"{number}")


def _wanted(name: str, flags: argparse.Namespace) -> bool:
    return all(word in name for word in flags.words)


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m clients", description=__doc__)
    parser.add_argument("words", nargs="*", help="run only clients with all these in their names")
    parser.add_argument(
        "--environments", type=Path, default=Path(".venv-clients"), help="where they are installed"
    )
    parser.add_argument("--inferencex", type=Path, metavar="DIR", help="a checkout of it")
    parser.add_argument("--url", nargs="+", default=[], help="demo servers that run already")
    return parser.parse_args()


sys.exit(main())
