"""Run blocking work in threads off the event loop; errors reach the awaiting caller.

All of serve/ uses this module. With asyncio's own threads a request hangs forever if its work
raises StopIteration, which no future can hold, and the process's exit waits for them.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most `count` daemon threads, started on demand, that do work in order of arrival."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._started = 0
        self._busy = 0
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    async def run(self, work: Callable[[], T]) -> T:
        """Return or raise the work's outcome; cancelled work is not started.

        RuntimeError replaces exceptions that would end a thread, generator or event loop.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._busy += 1
            if self._started < min(self._busy, self._count):
                self._started += 1
                name = f"{self._name} {self._started}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._waiting.put(partial(_do, work, answer))
        return await answer

    def _serve(self) -> None:
        while True:
            do = self._waiting.get()
            do()
            del do  # Release this work's values while waiting for the next.
            with self._lock:
                self._busy -= 1


def _do(work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    if answer.cancelled():
        return
    try:
        result = work()
    except BaseException as raised:
        result = _holdable(raised)
    with suppress(RuntimeError):  # The loop is closed.
        answer.get_loop().call_soon_threadsafe(settle, answer, result)


def _holdable(raised: BaseException) -> Exception:
    """Return an exception that a future can hold and a task can raise."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    error = RuntimeError(f"work in a thread raised {raised!r}")
    error.__cause__ = raised
    return error


def settle(answer: asyncio.Future[Any], result: object) -> None:
    """Set a future's result or exception, unless it is already done or cancelled."""
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


_threads = Threads("shared", 4)
in_thread = _threads.run
"""Run short work in the shared threads."""
