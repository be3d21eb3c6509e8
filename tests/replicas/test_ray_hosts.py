"""One command, two actors of two CPU devices: one process's tokens, a death named, a restart."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed; see make ray-test"
)
ROOT = Path(__file__).parents[2]
ALONE, TOGETHER = 18241, 18242
SIZES = ("--demo", "--max-num-seqs", "1", "--num-gpu-blocks-override", "65")
RAY = ("-tp", "4", "--num-processes", "2", "--distributed-executor-backend", "ray")
BODIES = [
    {"prompt": "What is 95 + 61?", "max_tokens": 24, "seed": seed, "temperature": temperature}
    for seed, temperature in ((0, 0.0), (1, 1.0), (2, 0.7))
]
NAMED_WITHIN_S = 2


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}").status_code == 200
        except httpx.TransportError:
            return False

    def answers(self) -> list[list[int]]:
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        asked: list[dict[str, Any]] = [body | {"return_token_ids": True} for body in BODIES]
        found = [httpx.post(url, json=body, timeout=120).json() for body in asked]
        return [answer["choices"][0]["token_ids"] for answer in found]

    def pids(self) -> list[int]:
        """Of process 1, of each start."""
        return [int(p) for p in re.findall(r"^process 1 of 2: \S+ pid (\d+)", self.said(), re.M)]

    def said(self) -> str:
        return self.log.read_text()


def started(folder: Path, port: int, flags: tuple[str, ...], devices: int) -> Server:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment |= {"JAX_NUM_CPU_DEVICES": str(devices), "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(folder / f"programs{port}")}
    command = [sys.executable, "-m", "serve.cli", *SIZES, "--port", str(port), *flags]
    log = folder / f"{port}.log"
    with log.open("wb") as error:
        return Server(subprocess.Popen(command, env=environment, stderr=error), port, log)


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Tokens of one process with one device."""
    server = started(tmp_path_factory.mktemp("alone"), ALONE, (), 1)
    try:
        wait_until(lambda: server.get("/health"), 400)
        return server.answers()
    finally:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Server]:
    server = started(tmp_path, TOGETHER, (*RAY, "--restart-workers"), 2)
    try:
        wait_until(lambda: server.get("/health"), 500)
        yield server
    finally:
        server.process.terminate()
        server.process.wait(60)


def test_two_actors_give_one_process_tokens_and_come_back_when_one_is_killed(
    expected: list[list[int]], together: Server
) -> None:
    assert together.answers() == expected
    os.kill(together.pids()[0], signal.SIGKILL)
    wait_until(lambda: "error: lost process 1 (" in together.said(), NAMED_WITHIN_S)
    wait_until(lambda: len(together.pids()) == 2, 120)
    wait_until(lambda: together.get("/health"), 500)
    assert together.answers() == expected
    together.process.terminate()
    assert together.process.wait(90) == 0
