"""docs/deploy/ray_serve.py on this machine: `make ray-test`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest
from probe import status_of, wait_for

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed; see make ray-test"
)
EXAMPLE = Path(__file__).parents[2] / "docs/deploy/ray_serve.py"
PORT = 18231
URL = f"http://127.0.0.1:{PORT}"
BODY = {
    "model": "eagle3-demo",
    "messages": [{"role": "user", "content": "What is 95 + 61?"}],
    "temperature": 0,
    "max_tokens": 24,
}
REPLICAS = 2


@pytest.fixture(scope="module")
def replicas(programs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Two of the embedded pair, which serve."""
    with serving(programs, REPLICAS, REPLICAS) as process:
        yield process


@contextmanager
def serving(
    programs: Path, fewest: int, most: int, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Replicas of the embedded pair, one of which serves; of a size that other tests compile."""
    environment = os.environ | {"PYTHONPATH": str(EXAMPLE.parents[2]), "JAX_PLATFORMS": "cpu"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(programs)}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0"}
    scaling = ["--min-replicas", f"{fewest}", "--max-replicas", f"{most}", *options]
    command = [sys.executable, str(EXAMPLE), "--port", f"{PORT}", *scaling, "--"]
    command += ["--demo", "--max-num-seqs", "1", "--num-gpu-blocks-override", "65"]
    with subprocess.Popen(command, env=environment) as process:
        try:
            wait_for(lambda: asked("/health"), 500, every_s=0.5)
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def asked(path: str) -> bool:
    return status_of(f"{URL}{path}") == 200


def answer(_: int = 0) -> str:
    got = httpx.post(f"{URL}/v1/chat/completions", json=BODY, timeout=120)
    assert got.status_code == 200, got.text
    return got.json()["choices"][0]["message"]["content"]


@pytest.mark.usefixtures("replicas")
def test_both_replicas_give_one_answer_and_streams_come_as_they_are_made() -> None:
    with ThreadPoolExecutor(4) as clients:
        answers = set(clients.map(answer, range(8)))
    assert len(answers) == 1
    with httpx.stream("POST", f"{URL}/v1/chat/completions", json=BODY | {"stream": True}) as got:
        lines = [line for line in got.iter_lines() if line]
    assert lines[-1] == "data: [DONE]" and len(lines) > 4
    error = httpx.post(f"{URL}/v1/chat/completions", json=BODY | {"model": "other"})
    assert error.status_code == 404 and "other" in error.json()["error"]["message"]
    assert httpx.get(f"{URL}/nowhere").status_code == 404


def test_a_replica_that_is_killed_is_replaced_and_requests_are_answered_meanwhile(
    replicas: subprocess.Popen[bytes],
) -> None:
    before = answer()
    victim = processes()[0]
    victim.kill()
    answers = {answer() for _ in range(4)}
    assert answers == {before}
    wait_for(lambda: len({p.pid for p in processes()} - {victim.pid}) == REPLICAS, 300, every_s=0.5)


def processes() -> list[psutil.Process]:
    """Processes of replicas, by the names that Ray gives them; one that just ended has no command
    line."""
    named = "ray::ServeReplica:eagle3"
    found = psutil.process_iter(["cmdline"])
    return [p for p in found if named in " ".join(p.info["cmdline"] or [])]
