"""Two processes of two devices: the tokens of one, and a clear end when one stops or is killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from driving import drive
from oracle_files import ORACLES

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams
from serve.pair.loading import LoadedPair

DRAFT = ORACLES / "draft_mha_bf16"
TESTS = Path(__file__).parents[2]
LONG = {"prompt": [5, 9, 2], "max_tokens": 250, "ignore_eos": True, "stream": True}
OPTIONS = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}] * 2
ENDS_WITHIN_S = 30
NAMED_WITHIN_S = 15


@dataclass
class Group:
    """Both processes, process 0's address, and what they say on standard error."""

    processes: list[subprocess.Popen[bytes]]
    url: str
    logs: list[Path]

    def said(self, process: int) -> str:
        return self.logs[process].read_text()


def free_ports() -> tuple[int, int, int]:
    """For HTTP, JAX and calls."""
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for probe in (a, b, c):
            probe.bind(("127.0.0.1", 0))
        http, coordinator, calls = (probe.getsockname()[1] for probe in (a, b, c))
        return http, coordinator, calls


@contextmanager
def two_processes(directory: Path, target: Path, context_parts: int) -> Iterator[Group]:
    """context_parts: devices that divide a context."""
    http, coordinator, calls = free_ports()
    speculation = json.dumps({"model": str(DRAFT), "num_speculative_tokens": 3})
    command = [sys.executable, str(Path(__file__).with_name("one_process.py")), str(target)]
    command += ["-tp", "4", "--max-num-seqs", "2", "--max-model-len", "256", "--port", str(http)]
    command += ["--speculative-config", speculation, "--num-processes", "2"]
    command += ["--decode-context-parallel-size", str(context_parts), "--block-size", "4"]
    command += ["--coordinator-address", f"127.0.0.1:{coordinator}", "--plan-port", str(calls)]
    command += ["--num-gpu-blocks-override", str(264 // (4 * context_parts) + 1)]
    command += ["--kv-offloading-size", "0.01", "--hosts-key-file", str(directory / "key")]
    (directory / "key").touch(0o600)
    (directory / "key").write_text(os.urandom(32).hex())
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent}"}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(target.parent / "programs")}
    environment |= {"JAX_NUM_CPU_DEVICES": "2", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    logs = [directory / f"{process}.log" for process in range(2)]
    group = Group([], f"http://127.0.0.1:{http}", logs)
    try:
        for process, log in enumerate(logs):
            with log.open("wb") as error:
                argv = [*command, "--process-id", str(process)]
                group.processes.append(subprocess.Popen(argv, env=environment, stderr=error))
        wait_until_ready(group)
        yield group
    finally:
        for process in group.processes:
            process.kill()
            process.wait()


def wait_until_ready(group: Group) -> None:
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        ended = [group.said(i) for i, p in enumerate(group.processes) if p.poll() is not None]
        assert not ended, ended
        try:
            if httpx.get(f"{group.url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError("the group was not ready in time")


def ask(group: Group, body: dict[str, Any]) -> list[int]:
    answer = httpx.post(f"{group.url}/v1/completions", json=body, timeout=120).json()
    return answer["choices"][0]["token_ids"]


def plain_tokens(pair: LoadedPair, bodies: list[dict[str, Any]]) -> list[list[int]]:
    """Of one process on one device without drafts."""
    names = ("temperature", "top_p", "seed", "max_tokens", "ignore_eos")
    requests = [
        Request(f"{i}", body["prompt"], SamplingParams(**{n: body[n] for n in names if n in body}))
        for i, body in enumerate(bodies)
    ]
    config = EngineConfig(0, max_model_len=256, max_num_seqs=8, batch_buckets=(8,))
    answers = drive(Engine(pair.target, None, config), requests)
    return [answers[request.request_id].token_ids for request in requests]


def came_back(group: Group) -> bool:
    """Whether a prompt whose pages went to the host has the same answer when they are loaded."""
    body = {"prompt": [*range(90)], "max_tokens": 24, "temperature": 0.0, "return_token_ids": True}
    before = ask(group, body)
    for other in range(4):
        ask(group, body | {"prompt": [other + 1] * 200})
    again = httpx.post(f"{group.url}/v1/completions", json=body, timeout=120).json()
    details = again["usage"]["prompt_tokens_details"]["cached_tokens_details"]
    return details["host"] > 0 and again["choices"][0]["token_ids"] == before


@dataclass
class Ending:
    """What clients had when a process was killed: when they had it, the status, the last lines."""

    seconds: float
    status: int
    lines: list[str]


def stream(group: Group) -> Ending:
    began, lines, status = time.monotonic(), [], 0
    try:
        with httpx.stream("POST", f"{group.url}/v1/completions", json=LONG, timeout=120) as answer:
            status = answer.status_code
            lines += [line for line in answer.iter_lines() if line]
    except httpx.RemoteProtocolError:
        lines.append("broken off")
    return Ending(time.monotonic() - began, status, lines)


def end_under_way(group: Group, victim: int, how: signal.Signals) -> tuple[list[Ending], str, int]:
    """Kills or stops one while more requests than fit are under way; how they ended, and the
    survivor."""
    survivor = group.processes[1 - victim]
    with ThreadPoolExecutor() as clients:
        under_way = [clients.submit(stream, group) for _ in range(4)]
        time.sleep(1)
        group.processes[victim].send_signal(how)
        began = time.monotonic()
        while "error: lost process" not in group.said(1 - victim):
            assert time.monotonic() < began + NAMED_WITHIN_S, "it was not missed"
            time.sleep(0.1)
        status = survivor.wait(ENDS_WITHIN_S)
        return [client.result(5) for client in under_way], group.said(1 - victim), status


@pytest.fixture
def group(
    request: pytest.FixtureRequest, target_directory: Path, tmp_path: Path
) -> Iterator[Group]:
    """Of contexts that all four devices divide, unless a test says otherwise."""
    with two_processes(tmp_path, target_directory, getattr(request, "param", 4)) as running:
        yield running


def test_two_processes_serve_the_tokens_of_one_and_end_when_the_second_stops(
    group: Group, pair: LoadedPair
) -> None:
    """The tokens under the tie rule; none of these requests has a tie."""
    shared = {"max_tokens": 24, "ignore_eos": True}
    bodies = [
        {"prompt": [3 + i, 40, 7 * i + 1], "seed": i, **shared, **chosen}
        for i, chosen in enumerate(OPTIONS)
    ]
    with ThreadPoolExecutor() as clients:
        asked = [body | {"return_token_ids": True} for body in bodies]
        served = list(clients.map(lambda body: ask(group, body), asked))
    assert served == plain_tokens(pair, bodies)
    metrics = httpx.get(f"{group.url}/metrics").text
    accepted = re.search(r"^vllm:spec_decode_num_accepted_tokens_total\S* (\d+)", metrics, re.M)
    assert accepted and int(accepted[1]) > 0, "speculation was on"
    assert came_back(group), "pages went to host memory and came back with other tokens"
    endings, said, status = end_under_way(group, 1, signal.SIGSTOP)
    assert status == 1
    assert re.search(r"lost process 1 \(127\.0\.0\.1\): its connection broke", said)
    for ending in endings:
        assert ending.status == 503 or ending.lines[-1] == "data: [DONE]"
        error = ending.lines[-1] if ending.status == 503 else ending.lines[-2]
        assert "lost process 1 (127.0.0.1)" in error


@pytest.mark.parametrize("group", [1], indirect=True)
def test_the_second_process_ends_when_the_first_is_killed(group: Group) -> None:
    endings, said, status = end_under_way(group, 0, signal.SIGKILL)
    assert status == 1
    assert re.search(r"lost process 0 \(127\.0\.0\.1:\d+\): its connection broke", said)
    assert all(ending.lines[-1] == "broken off" for ending in endings)
    assert max(ending.seconds for ending in endings) < ENDS_WITHIN_S
