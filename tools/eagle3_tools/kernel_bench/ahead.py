"""Programs of the next cases are compiled on threads while one is measured, but not while one is
timed: compiling puts nothing on the GPU, as nothing is autotuned, but it takes the processor from
whoever launches."""

import os
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from threading import Condition
from typing import Any

THREADS = max(1, min(8, (os.cpu_count() or 1) - 1))


class Turns:
    """Many compile at once, or one times. Who wants to time is let in before more compile."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._compiling = 0
        self._timing = 0

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Waits while somebody times, or wants to."""
        with self._changed:
            self._changed.wait_for(lambda: not self._timing)
            self._compiling += 1
        try:
            yield
        finally:
            self._leave(compiling=1)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Waits for what is being compiled; one thread at a time may ask."""
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
    """What compile(key, turn) makes of keys, begun before it is asked for. turn: to be entered
    around every program that is compiled."""

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
        """Once for a key."""
        if key not in self._begun:
            self._begun[key] = self._pool.submit(self._compile, key, self.turns.compiling)

    def take(self, key: Hashable) -> Any:
        """Waits for it, and forgets it. Raises what compiling raised."""
        self.begin(key)
        return self._begun.pop(key).result()
