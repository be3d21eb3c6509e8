"""Cache of recently used compiled grammars, limited by bytes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """An object that knows how much memory it holds, which may grow."""

    @property
    def held_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class GrammarCache(Generic[T]):
    """LRU cache, limited in total and per entry. Thread-safe."""

    def __init__(self, most_bytes: int, most_bytes_each: int) -> None:
        """Limit all entries to `most_bytes` and each entry to `most_bytes_each`."""
        self._most, self._most_each = most_bytes, most_bytes_each
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> T | None:
        """Return the value of a key if it is still cached."""
        with self._lock:
            self._trim()
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: T) -> None:
        """Cache a value as long as there is room for it."""
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
