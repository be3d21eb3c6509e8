"""Runs clients one after another and keeps what their result files say."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from clients.client import Client, Counts, Server
from probe import status_of

from eagle3_tools.bench.load.server_process import serving
from serve.demo import demo_target_dir, demo_vision_target_dir
from serve.options.pair import DEMO, DEMO_VISION

CLIENT_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Run:
    """One client's run. `counts` is None when it wrote no result that can be read."""

    name: str
    version: str
    command: list[str]
    status: int
    seconds: float
    counts: Counts | None

    @property
    def good(self) -> bool:
        """Everything completed, and the client ended well."""
        return self.status == 0 and self.counts is not None and self.counts.all_completed


@contextmanager
def demo_server(
    directory: Path, *flags: str, url: str | None = None, sees: bool = False
) -> Iterator[Server]:
    """eagle3-serve --demo, or --demo-vision, ready, with its tokenizer's files in `directory`.

    url: one that runs already, in place of a new one with these flags.
    """
    source = demo_vision_target_dir() if sees else demo_target_dir()
    tokenizer = shutil.copytree(
        source, directory / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors")
    )
    name = DEMO_VISION if sees else DEMO
    if url:
        yield Server(url, name, tokenizer)
        return
    with serving(["--demo-vision" if sees else "--demo", *flags]) as (_, url):
        yield Server(url, name, tokenizer)


def is_healthy(url: str) -> bool:
    return status_of(f"{url}/health") == HTTPStatus.OK


def run_client(client: Client, server: Server, programs: Path, results: Path) -> Run:
    """Runs the client with `results` as working directory; its output goes to results/log."""
    results.mkdir(parents=True)
    argv = list(client.command(server, results))
    variables = {"HF_HOME": str(results / "huggingface"), **client.variables}
    status, seconds = run_logged(programs, argv, results, results / "log", variables)
    version = client.version or version_of(programs, client.distribution)
    return Run(client.name, version, argv, status, seconds, _counts(client, results))


def run_logged(
    programs: Path, argv: Sequence[str], work: Path, log: Path, variables: Mapping[str, str]
) -> tuple[int, float]:
    """Runs a program in the directory `work`. Returns its exit status and seconds."""
    begin = time.monotonic()
    with log.open("wb") as written:
        done = subprocess.run(
            [programs / argv[0], *argv[1:]],
            cwd=work,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            timeout=CLIENT_TIMEOUT_S,
        )
    return done.returncode, time.monotonic() - begin


def _counts(client: Client, results: Path) -> Counts | None:
    try:
        return client.read(results)
    except (OSError, ValueError, LookupError):
        return None


def version_of(programs: Path, distribution: str) -> str:
    """The version of a package in the environment of these programs."""
    ask = f"from importlib.metadata import version; print(version({distribution!r}))"
    return subprocess.check_output([programs / "python", "-c", ask], text=True).strip()
