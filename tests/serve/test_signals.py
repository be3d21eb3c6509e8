"""Signals to a whole process."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from fake_engine import expected_answer
from probe import status_of, wait_for
from processes import Forked

TESTS = Path(__file__).parent
STUCK = 40
LONG = {"prompt": "abc", "max_tokens": 40, "seed": 0, "stream": True}


@contextmanager
def serving(
    *args: str, log: Path | None = None, descriptors: int | None = None, ready: bool = True
) -> Iterator[tuple[Forked, str]]:
    """A server process that is ready, unless it needn't be, and its address; descriptors: how many
    it may have."""
    with Forked("fake_server", args, log=log, descriptors=descriptors, piped=True) as server:
        assert server.stdout
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        try:
            answers = (200,) if ready else (200, 503)
            wait_for(lambda: status_of(f"{url}/health") in answers, 10)
            yield server, url
        finally:
            server.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_answers_finish_and_exits_with_0(number: signal.Signals) -> None:
    # Made before: a client takes a second to make where others have the processors.
    with (
        serving() as (server, url),
        httpx.Client(timeout=30) as other,
        httpx.stream("POST", f"{url}/v1/completions", json=LONG | {"max_tokens": 250}) as answer,
    ):
        lines = answer.iter_lines()
        first = next(lines)
        server.send_signal(number)
        while other.get(f"{url}/health").status_code == 200:
            time.sleep(0.01)
        late = other.post(f"{url}/v1/completions", json=LONG)
        assert late.status_code == 503 and int(late.headers["Retry-After"]) > 0
        body = first + "".join(lines)
        assert body.endswith("data: [DONE]")
        assert body.count('"text"') >= 2 and expected_answer("abc", 0, 250)[-2:] in body
        assert server.wait(30) == 0


def test_under_nohup_a_closed_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with serving() as (server, url):
            server.send_signal(signal.SIGHUP)
            answer = httpx.post(f"{url}/v1/completions", json=LONG | {"stream": False}, timeout=30)
            assert answer.status_code == 200 and status_of(f"{url}/health") == 200
    finally:
        signal.signal(signal.SIGHUP, before)


def test_threads_that_work_on_do_not_hold_the_exit() -> None:
    """More of them than the default pool has, each for a minute."""
    body = {"prompt": "stuck", "padding": "x" * 30_000}
    with (
        serving("--drain-timeout", "0.5") as (server, url),
        ThreadPoolExecutor(STUCK) as pool,
        httpx.Client(base_url=url, timeout=30) as http,
    ):
        asked = [pool.submit(http.post, "/v1/completions", json=body) for _ in range(STUCK)]
        time.sleep(0.5)
        server.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        assert server.wait(30) == 0
        assert time.monotonic() - sent < 8
        for answer in asked:
            assert answer.result().status_code == 503
            assert "shutting down" in answer.result().json()["error"]["message"]


def test_second_signal_ends_at_once_what_ctrl_c_would_have_let_finish() -> None:
    long = LONG | {"max_tokens": 250}
    with (
        serving() as (server, url),
        httpx.stream("POST", f"{url}/v1/completions", json=long) as answer,
    ):
        next(answer.iter_lines())
        server.send_signal(signal.SIGINT)
        time.sleep(0.1)
        assert server.poll() is None
        sent = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 128 + signal.SIGTERM
        assert time.monotonic() - sent < 1


def test_a_step_that_hangs_fails_requests_then_health_then_the_process() -> None:
    with serving("--hang-at-step", "5") as (server, url):
        answer = httpx.post(f"{url}/v1/completions", json=LONG | {"stream": False})
        assert answer.status_code == 503
        assert "step took longer than 0.4 seconds" in answer.json()["error"]["message"]
        assert httpx.get(f"{url}/health").status_code == 503
        assert httpx.post(f"{url}/v1/completions", json=LONG).status_code == 503
        assert server.wait(30) == 1


def test_half_open_connections_take_no_others_place_and_fill_no_log(tmp_path: Path) -> None:
    """More of them than the process may have descriptors."""
    with serving(log=tmp_path / "log", descriptors=64) as (server, url), ExitStack() as stack:
        for _ in range(200):
            bare = stack.enter_context(socket.socket())
            bare.setblocking(False)
            bare.connect_ex(("127.0.0.1", httpx.URL(url).port))
        began = time.monotonic()
        while time.monotonic() - began < 2:
            assert httpx.get(f"{url}/health", timeout=10).status_code == 200
        lines = (tmp_path / "log").read_text().splitlines()
        assert 1 <= sum("as many as descriptors allow" in line for line in lines) == len(lines)
        assert len(lines) <= time.monotonic() - began + 2
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0


@pytest.mark.parametrize(
    ("after_s", "number", "name"),
    [(0.3, signal.SIGTERM, "SIGTERM"), (1.5, signal.SIGINT, "Ctrl-C")],
)
def test_stopping_eagle3_generate_is_one_line_and_gives_128_and_the_signal(
    target_directory: Path, after_s: float, number: int, name: str
) -> None:
    started = "print('up', flush=True)"
    command = f"import sys; from serve.generate.cli import main; {started}; main(sys.argv[1:])"
    argv = [str(target_directory), "--prompt", "a", "--max-tokens", "900"]
    with subprocess.Popen(
        [sys.executable, "-c", command, *argv],
        env=os.environ | {"PYTHONPATH": str(TESTS.parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(after_s)
        process.send_signal(number)
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (128 + number, f"eagle3-generate: stopped by {name}\n")


def test_a_server_that_is_stopped_while_it_compiles_says_so_and_is_not_a_success(
    tmp_path: Path,
) -> None:
    with serving("--compiles", ready=False, log=tmp_path / "log") as (server, url):
        assert httpx.get(f"{url}/health").status_code == 503
        server.send_signal(signal.SIGTERM)
        server.wait(30)
        log = (tmp_path / "log").read_text()
    assert server.returncode == 128 + signal.SIGTERM
    assert log.count("\n") == 1 and "stopped by SIGTERM while compiling" in log
