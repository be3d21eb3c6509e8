"""One command, two actors of two CPU devices: one process's tokens, a death named, a restart."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from probe import wait_for
from taken_names import folder_with_taken_names

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
STREAM = {"prompt": "Count to 900.", "max_tokens": 400, "ignore_eos": True, "stream": True}
NAMED_WITHIN_S = {signal.SIGKILL: 2, signal.SIGSTOP: 15}
READY_WITHIN_S = 500


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def completions(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/completions"

    def answer(self, body: dict[str, Any]) -> list[int]:
        """Ask until an answer comes."""
        deadline = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline:
            try:
                asked = body | {"return_token_ids": True}
                found = httpx.post(self.completions, json=asked, timeout=120)
                if found.status_code == 200:
                    return found.json()["choices"][0]["token_ids"]
                assert found.status_code == 503, found.text
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise AssertionError("no answer came")

    def answers(self) -> list[list[int]]:
        return [self.answer(body) for body in BODIES]

    def last_words(self, begun: Event) -> str:
        """Return the message of a stream's error event or of a refusal; empty if the stream breaks.
        begun: set with the first line."""
        lines: list[str] = []
        try:
            with httpx.stream("POST", self.completions, json=STREAM, timeout=120) as got:
                for line in filter(None, got.iter_lines()):
                    lines.append(line)
                    begun.set()
        except httpx.TransportError:
            return ""
        if lines[-1] == "data: [DONE]":
            lines.pop()
        return json.loads(lines[-1].removeprefix("data: "))["error"]["message"]

    def pids(self, process: int = 1) -> list[int]:
        """Return the process ids of this process, one for each start."""
        found = re.findall(rf"^process {process} of 2: \S+ pid (\d+)", self.said(), re.M)
        return [int(pid) for pid in found]

    def said(self) -> str:
        return self.log.read_text()


def started(
    folder: Path, programs: Path, port: int, flags: tuple[str, ...], devices: int
) -> Server:
    """programs: where those that were compiled are kept."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment |= {"JAX_NUM_CPU_DEVICES": str(devices), "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(programs)}
    command = [sys.executable, "-P", "-m", "serve.cli", *SIZES, "--port", str(port), *flags]
    log = folder / f"{port}.log"
    with log.open("wb") as error:
        process = subprocess.Popen(
            command, env=environment, stderr=error, cwd=folder_with_taken_names(folder)
        )
        return Server(process, port, log)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Iterator[Server]:
    """One process with one device, which may still compile."""
    server = started(tmp_path_factory.mktemp("alone"), programs, ALONE, (), 1)
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture
def long(request: pytest.FixtureRequest) -> None:
    """A start and a restart each."""
    if not request.config.getoption("--long"):
        pytest.skip("a start each: --long, or make prove-hosts")


@pytest.fixture
def together(tmp_path: Path, programs: Path) -> Iterator[Server]:
    """Two actors, which may still compile."""
    server = started(tmp_path, programs, TOGETHER, (*RAY, "--restart-workers"), 2)
    yield server
    server.process.terminate()
    server.process.wait(60)


def test_two_actors_give_one_process_tokens_and_come_back_when_one_is_killed(
    alone: Server, together: Server
) -> None:
    """Killed while requests are under way."""
    expected = alone.answers()
    assert together.answers() == expected
    check_end(together, 1, signal.SIGKILL)
    assert together.answers() == expected
    together.process.terminate()
    assert together.process.wait(90) == 0


@pytest.mark.usefixtures("long")
@pytest.mark.parametrize(
    ("process", "how"), [(1, signal.SIGSTOP), (0, signal.SIGKILL), (0, signal.SIGSTOP)]
)
def test_whoever_is_stopped_or_killed_is_named_and_all_come_back(
    alone: Server, together: Server, process: int, how: signal.Signals
) -> None:
    expected = alone.answers()
    assert together.answers() == expected
    check_end(together, process, how)
    assert together.answers() == expected
    assert len(together.pids(process)) == 2


@pytest.mark.usefixtures("long")
def test_a_successor_that_is_killed_while_it_compiles_has_a_successor(
    alone: Server, together: Server
) -> None:
    expected = alone.answers()
    assert together.answers() == expected
    os.kill(together.pids()[0], signal.SIGKILL)
    wait_for(lambda: len(together.pids()) == 2, 60)
    os.kill(together.pids()[1], signal.SIGKILL)
    wait_for(lambda: "starting all processes again, start 2 of at most 3" in together.said(), 60)
    assert together.answers() == expected


def check_end(server: Server, process: int, how: signal.Signals) -> None:
    """Kills or stops one while two requests are under way, of which one waits: the command names
    it, tells both clients why, and goes on answering."""
    with ThreadPoolExecutor() as clients:
        begun = Event()
        endings = [clients.submit(server.last_words, begun) for _ in range(2)]
        assert begun.wait(60)
        began = time.monotonic()
        os.kill(server.pids(process)[-1], how)
        named = re.compile(rf"^error: lost process {process} \(", re.M)
        wait_for(lambda: named.search(server.said()), NAMED_WITHIN_S[how])
        print(f"{how.name} of process {process}: named after {time.monotonic() - began:.2f} s")
        reasons = [ending.result() for ending in endings]
        refused = httpx.post(server.completions, json=BODIES[0], timeout=60)
        assert refused.status_code == 503 and refused.headers["Retry-After"]
        wait_for(lambda: len(server.pids()) == 2, 60)
        print(f"placed again after {time.monotonic() - began:.2f} s")
    assert all(f"lost process {process} (" in reason for reason in reasons)
