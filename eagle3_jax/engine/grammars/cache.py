"""Compiled grammars that were used lately, as many as fit into a number of bytes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """What knows how much memory it holds; it may grow."""

    @property
    def held_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class GrammarCache(Generic[T]):
    """Forgets what was used longest ago, and what has grown beyond its share; any thread's."""

    def __init__(self, most_bytes: int, most_bytes_each: int) -> None:
        """most_bytes: of all it keeps, most_bytes_each: of one."""
        self._most, self._most_each = most_bytes, most_bytes_each
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """What was put under the key, if it is still there."""
        with self._lock:
            self._trim()
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: T) -> None:
        """Keeps a value as long as there is room for it."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            self._trim()

    def _sum(self) -> int:
        return sum(value.held_bytes for value in self._kept.values())

    def _trim(self) -> None:
        for key in [k for k, v in self._kept.items() if v.held_bytes > self._most_each]:
            del self._kept[key]
        while self._kept and self._sum() > self._most:
            self._kept.popitem(last=False)
