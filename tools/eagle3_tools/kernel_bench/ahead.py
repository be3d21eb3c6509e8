"""Background compilation of the next cases while one is measured, paused while one is timed.

Compiling uses no GPU, because nothing is autotuned, but it takes processor time from launches.
"""

import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Condition
from typing import Any

THREADS = max(1, min(8, (os.cpu_count() or 1) - 1))


class Turns:
    """Lock that allows many compilations or one timing at a time; waiting timings go first."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._compiling = 0
        self._timing = 0

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Return a context for a compilation, which waits for current and waiting timings."""
        with self._changed:
            self._changed.wait_for(lambda: not self._timing)
            self._compiling += 1
        try:
            yield
        finally:
            self._leave(compiling=1)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Return a context for a timing, which waits for running compilations; one at a time."""
        with self._changed:
            self._timing += 1
            self._changed.wait_for(lambda: not self._compiling)
        try:
            yield
        finally:
            self._leave(timing=1)

    def _leave(self, *, compiling: int = 0, timing: int = 0) -> None:
        with self._changed:
            self._compiling -= compiling
            self._timing -= timing
            self._changed.notify_all()


class Ahead:
    """Results of compile(key, turn), started ahead; compile enters turn for each program."""

    def __init__(
        self,
        compile: Callable[[Any, Callable[[], AbstractContextManager[None]]], Any],
        threads: int = THREADS,
    ) -> None:
        self.turns = Turns()
        self._compile = compile
        self._pool = ThreadPoolExecutor(threads)
        self._begun: dict[Hashable, Future[Any]] = {}

    def begin(self, key: Hashable) -> None:
        """Start compiling for `key`, unless already started."""
        if key not in self._begun:
            self._begun[key] = self._pool.submit(self._compile, key, self.turns.compiling)

    def take(self, key: Hashable) -> Any:
        """Wait for the result of `key` and remove it. Raises the compiler's errors."""
        self.begin(key)
        return self._begun.pop(key).result()
