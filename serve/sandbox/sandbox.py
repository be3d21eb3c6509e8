"""Do work on hostile data in processes that have limits of CPU time and memory."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

from serve.sandbox import process

WHOLE_PROCESS = ExitStack()
"""Owner of sandboxes that last until this process ends, which ends theirs."""


class EndedError(Exception):
    """The work exceeded its limits, and its process was ended."""


class BusyError(Exception):
    """The machine was too slow, or the process of all workers has ended."""


@dataclass(frozen=True)
class Limits:
    """Limits of one question.

    Attributes:
        cpu_seconds: CPU time; the kernel ends a worker that exceeds it.
        memory_bytes: address space beyond the worker's initial one.
        wall_seconds: timeout for an answer, on a machine with other work.
        niceness: of the worker; 10 gives precedence to generation.
    """

    cpu_seconds: float
    memory_bytes: int
    wall_seconds: float
    niceness: int = 0


class Sandbox:
    """A pool of workers, forked from one process that has imported and prepared the work.

    A context manager: the process starts when the block begins, or again with the first question
    after it died, and all processes end with the block. Questions do not wait for each other;
    callers limit their number. Thread-safe.

    Args:
        module: its `prepare(setup)` returns the function that answers questions, bytes to bytes.
        setup: passed to `prepare`.
        reused: let a worker answer several questions. Otherwise each question has a new process, so
            that no client's data can reach another client's.
    """

    def __init__(self, module: str, setup: bytes = b"", *, reused: bool = False) -> None:
        self._module, self._setup, self._reused = module, setup, reused
        self._lock = threading.Lock()
        self._idle: deque[socket.socket] = deque()
        self._control, self._process = _start(module, setup)
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def ask(self, question: bytes, limits: Limits) -> bytes:
        """Return the answer; blocks until it arrives.

        Raises:
            EndedError: the work exceeded its limits.
            BusyError: there is no answer, for a reason unrelated to the question.
            RuntimeError: the work raised an exception, which is a bug.
        """
        self._restart_dead()
        worker = self._idle_worker() or self._fork()
        try:
            good, answer = _exchange(worker, question, limits)
        except BaseException as error:
            worker.close()
            if isinstance(error, TimeoutError):
                message = f"the machine is too busy: no answer within {limits.wall_seconds:g} s"
                raise BusyError(message) from error
            if not isinstance(error, EOFError | OSError):
                raise
            if self._process.poll() is not None:
                raise BusyError("the process that workers are forked from has ended") from error
            raise EndedError from error
        if self._reused and not self._closed:
            self._idle.append(worker)
        else:
            worker.close()
        if not good:
            raise RuntimeError(f"{self._module} raised {answer.decode(errors='replace')}")
        return answer

    def _restart_dead(self) -> None:
        """Start the process from which workers are forked again, if it has ended."""
        with self._lock:
            if self._closed:
                raise BusyError("the server stops")
            if self._process.poll() is not None:
                self._end()
                self._control, self._process = _start(self._module, self._setup)

    def _end(self) -> None:
        """End all workers by closing their connections, and the process that forks them."""
        self._control.close()
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
        self._process.kill()
        self._process.wait()

    def _idle_worker(self) -> socket.socket | None:
        """Return a worker that has answered before and still runs."""
        while self._idle:
            with suppress(IndexError):  # Another thread took it.
                worker = self._idle.pop()
                worker.setblocking(False)
                try:
                    worker.recv(1, socket.MSG_PEEK)
                except BlockingIOError:
                    return worker
                except OSError:
                    pass
                worker.close()
        return None

    def _fork(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, self._lock, suppress(OSError):  # Without a worker the exchange fails.
            socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        return ours


def _exchange(worker: socket.socket, question: bytes, limits: Limits) -> tuple[bool, bytes]:
    worker.settimeout(limits.wall_seconds)
    head = len(question), limits.cpu_seconds, limits.memory_bytes, limits.niceness
    worker.sendall(process.QUESTION.pack(*head))
    worker.sendall(question)
    with worker.makefile("rb") as answers:
        good, size = process.ANSWER.unpack(_exactly(answers.read, process.ANSWER.size))
        return good, _exactly(answers.read, size)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    if len(found := read(size)) < size:
        raise EOFError
    return found


def _start(module: str, setup: bytes) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        started = subprocess.Popen(
            [sys.executable, "-I", process.__file__, f"{theirs.fileno()}", module],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            # A process with threads cannot be forked safely, and NumPy starts threads.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    assert started.stdin
    with suppress(BrokenPipeError), started.stdin as file:
        file.write(json.dumps(sys.path).encode() + b"\n" + setup)
    return ours, started
