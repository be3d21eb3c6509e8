"""Workers answer within limits, whatever the work does, and end with their server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from probe import wait_for

from serve.sandbox.sandbox import BusyError, EndedError, Limits, Sandbox

LIMITS = Limits(cpu_seconds=0.2, memory_bytes=2**28, wall_seconds=60)


@pytest.fixture(scope="module", params=[False, True], ids=["new", "reused"])
def workers(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox("odd_work", b"hello", reused=request.param) as found:
        yield found


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def pid(workers: Sandbox) -> int:
    return int(workers.ask(b"", LIMITS).split()[1])


def test_a_question_is_answered_by_a_new_process_or_the_same(workers: Sandbox) -> None:
    assert workers.ask(b"x" * 2**24, LIMITS).split()[::2] == [b"hello", b"16777216"]
    assert (pid(workers) == pid(workers)) == workers._reused


@pytest.mark.parametrize("work", [b"loop", b"power", b"fill", b"leave"])
def test_work_that_takes_too_much_is_ended_and_the_next_question_answered(
    workers: Sandbox, work: bytes
) -> None:
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(workers.ask, work, LIMITS)
        assert workers.ask(b"", LIMITS)
        with pytest.raises(EndedError):
            ended.result()
    assert workers.ask(b"", LIMITS)


def test_a_bug_is_told_and_a_late_answer_is_not_the_questions_fault(workers: Sandbox) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: of the work"):
        workers.ask(b"raise", LIMITS)
    with pytest.raises(BusyError, match=r"within 0\.1 s"):
        workers.ask(b"sleep", replace(LIMITS, wall_seconds=0.1))
    assert int(workers.ask(b"niceness", replace(LIMITS, niceness=os.nice(0) + 1))) == os.nice(0) + 1


def test_what_is_killed_from_outside_is_started_again(workers: Sandbox) -> None:
    worker, before = pid(workers), workers._process
    if workers._reused:
        os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not is_alive(worker))
    assert workers.ask(b"", LIMITS)
    before.kill()
    before.wait()
    assert workers.ask(b"", LIMITS) and workers.ask(b"", LIMITS)


def test_a_closed_sandbox_has_no_process_and_answers_no_more() -> None:
    with Sandbox("odd_work", reused=True) as sandbox:
        pids = [pid(sandbox), sandbox._process.pid]
    wait_for(lambda: not any(map(is_alive, pids)))
    with pytest.raises(BusyError):
        sandbox.ask(b"", LIMITS)


SERVER = """
import threading, time
from serve.sandbox.sandbox import Limits, Sandbox
workers = Sandbox("odd_work", reused=True)
limits = Limits(1, 2**28, 60)
print(workers.ask(b"", limits).split()[0].decode(), workers._process.pid, flush=True)
threading.Thread(target=workers.ask, args=(b"loop", limits), daemon=True).start()
time.sleep(60)
"""


def test_workers_whose_server_was_killed_end_too() -> None:
    """One worker is inside an endless loop, the other waits."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server:
        assert server.stdout
        pids = [int(pid) for pid in server.stdout.readline().split()]
        time.sleep(0.05)
        server.kill()
    wait_for(lambda: not any(map(is_alive, pids)), 20)
