"""vllm-router and sglang-router in front of two replicas, driven by locust."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from clients.client import Counts, Server
from clients.environments import make_environment
from clients.load_clients import LOCUST
from clients.runs import Run, is_healthy, run_client, version_of
from probe import free_port

from eagle3_tools.bench.load.server_process import metric

READY_TIMEOUT_S = 120.0
REASONS = ("stop", "length")


@dataclass(frozen=True)
class Router:
    """A router: its package, and argv without addresses; argv[0] is a program of `routers`."""

    distribution: str
    command: Sequence[str]


ROUTERS = (
    Router("vllm-router", ("vllm-router",)),
    Router("sglang-router", ("sglang-router", "launch")),
)


def run_router(
    router: Router, replicas: Sequence[Server], environments: Path, results: Path
) -> Run:
    """locust's run through the router. A replica that was never asked makes it a failure."""
    programs = make_environment("routers", environments)
    locust = replace(LOCUST, name=f"{router.distribution} before two replicas")
    before = [_answered(replica) for replica in replicas]
    with _routing(router, replicas, programs) as url:
        server = replace(replicas[0], url=url)
        run = run_client(locust, server, make_environment("locust", environments), results)
    shares = [_answered(replica) - then for replica, then in zip(replicas, before, strict=True)]
    assert run.counts, (results / "log").read_text()
    known = min(run.counts.completed, int(sum(shares))) if all(shares) else 0
    counts = Counts(known, run.counts.completed + run.counts.failed - known)
    return replace(run, counts=counts, version=version_of(programs, router.distribution))


@contextmanager
def _routing(router: Router, replicas: Sequence[Server], programs: Path) -> Iterator[str]:
    """The router's address, once it answers /health."""
    port, metrics = free_port(), free_port()
    urls = [replica.url for replica in replicas]
    argv = [programs / router.command[0], *router.command[1:], "--worker-urls", *urls]
    argv += ["--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        [*argv, "--prometheus-port", str(metrics)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not is_healthy(url := f"http://127.0.0.1:{port}"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise OSError(f"{router.distribution} was not ready within {READY_TIMEOUT_S:g} s")
            time.sleep(0.3)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _answered(server: Server) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    name = "vllm:request_success_total"
    return sum(metric(text, name, finished_reason=reason) for reason in REASONS)
