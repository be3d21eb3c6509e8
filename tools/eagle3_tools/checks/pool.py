"""Job processes that may crash or hang, as XLA's compiler does on some inputs."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

_CONTEXT = get_context("spawn")
_STARTING_S = 120.0


@dataclass(frozen=True)
class Failure:
    """Reason for a missing result. said: the last lines that the process wrote."""

    reason: str
    said: str = ""

    def __str__(self) -> str:
        return f"{self.reason} {self.said}".strip()

    @property
    def brief(self) -> str:
        """The reason, and the last line that the process wrote."""
        return " ".join([self.reason, *self.said.splitlines()[-1:]])


@dataclass(frozen=True)
class Last:
    """A result after which the process is replaced, because its state may be corrupt."""

    result: Any


def run_each(
    function: Callable[[Any], Any],
    jobs: Sequence[Any],
    *,
    processes: int,
    limit_s: float,
    reuse: bool = True,
) -> Iterator[Any]:
    """Yield function(job) for every job, in the order of `jobs`, or a Failure in its place.

    With `reuse` a process runs several jobs. It is replaced if it crashes, exceeds `limit_s` or
    returns a Last. After a process that does not start, as its error on stderr says, no other is
    tried. `function` must be at a module's top level, as `multiprocessing` requires.
    """
    idle: SimpleQueue[_Worker] = SimpleQueue()
    not_started: list[Failure] = []
    for _ in range(processes):
        idle.put(_Worker(function))

    def run(job: Any) -> Any:
        worker = idle.get()
        try:
            if not_started:
                return not_started[0]
            result = worker.run(job, limit_s)
            if not reuse:
                worker.stop()
            return result
        except _StartError as error:
            not_started.append(Failure(f"{error}"))
            return not_started[0]
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(processes) as threads:
            yield from threads.map(run, jobs)
    finally:
        while not idle.empty():
            idle.get().stop()


class _StartError(Exception):
    """A process ended or did nothing before it was ready for a job."""


class _Worker:
    """One process at a time, started when there is a job for it."""

    def __init__(self, function: Callable[[Any], Any]):
        self._function = function
        self._process: Any = None

    def run(self, job: Any, limit_s: float) -> Any:
        process = self._process or self._start()
        try:
            self._pipe.send(job)
            if self._pipe.poll(limit_s):
                return self._result(self._pipe.recv())
            reason = f"took longer than {limit_s:g} s"
        except (EOFError, OSError):
            process.join()
            reason = f"its process {_end(process.exitcode)}"
        said = self._log.read_text(errors="replace").strip().splitlines()
        self.stop()
        return Failure(reason, "\n".join(said[-5:]))

    def _result(self, sent: Any) -> Any:
        if not isinstance(sent, Last):
            return sent
        self.stop()
        return sent.result

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._folder.cleanup()
            self._process = None

    def _start(self) -> Any:
        self._folder = TemporaryDirectory()
        self._log = Path(self._folder.name) / "stderr"
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_work, args=(self._function, theirs, str(self._log)), daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            if self._pipe.poll(_STARTING_S):
                self._pipe.recv()
                return self._process
            reason = f"did not start within {_STARTING_S:g} s"
        except (EOFError, OSError):
            self._process.join()
            reason = f"{_end(self._process.exitcode)} while it imported {self._function.__module__}"
        self.stop()
        raise _StartError(f"its process {reason}")


def _work(function: Callable[[Any], Any], pipe: Connection, log: str) -> None:
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    pipe.send("ready")
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            result = function(job)
        except Exception as error:  # Any exception is the job's result.
            result = Failure(f"{type(error).__name__}: {error}")
        pipe.send(result)


def _end(exitcode: int) -> str:
    return (
        f"was ended by {signal.Signals(-exitcode).name}" if exitcode < 0 else f"left ({exitcode})"
    )
