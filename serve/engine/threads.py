"""Runs blocking work in threads of its own, off the event loop; errors reach whoever awaits it.

asyncio's own threads leave a request waiting for ever when its work raises StopIteration, which no
future can hold, and an exit waits for them. So all of serve/ comes through here.
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
    """At most `count` daemon threads, started as work comes, which do it in its order."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._started = 0
        self._busy = 0
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    async def run(self, work: Callable[[], T]) -> T:
        """What the work returns, or raises what it raises; RuntimeError in place of what would end
        a thread, a generator or the event loop. Not begun once nobody waits for it any more."""
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
            del do  # What waits for the next work must not hold on to this one's values.
            with self._lock:
                self._busy -= 1


def _do(work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    if answer.cancelled():
        return
    try:
        result = work()
    except BaseException as raised:
        result = _holdable(raised)
    with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
        answer.get_loop().call_soon_threadsafe(settle, answer, result)


def _holdable(raised: BaseException) -> Exception:
    """What a future may hold, and a task raise, in place of anything."""
    if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    error = RuntimeError(f"work in a thread raised {raised!r}")
    error.__cause__ = raised
    return error


def settle(answer: asyncio.Future[Any], result: object) -> None:
    """Gives a future its result, or its exception, if nobody has done so or given it up."""
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


_threads = Threads("shared", 4)
in_thread = _threads.run
"""Runs short work in the threads that all share."""
