"""Share a few slots for slow work fairly between the clients that wait for them."""

from asyncio import CancelledError, Future, get_running_loop
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NoRoomError(Exception):
    """The queue of waiting work is full."""


class FairTurns:
    """A queue that gives a free slot to the waiting client that holds the fewest.

    Of equals, the client that was served longest ago is first. For use from one event loop.

    Args:
        slots: maximum number of work items in progress.
        most_waiting: maximum number of waiting items. Beyond it, the client with the most waiting
            items loses its latest if it has more than the new client; otherwise the new item is
            refused.
    """

    def __init__(self, slots: int, most_waiting: int) -> None:
        self._free, self._most = slots, most_waiting
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[Future[None]]] = {}  # Served longest ago first.

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it for the block; NoRoomError if too much work is waiting."""
        if self._free:
            self._free -= 1
            self._held[client] += 1
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._give_back(client)

    async def _wait(self, client: str) -> None:
        self._make_room(client)
        place: Future[None] = get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except CancelledError:
            if not (place.cancelled() or place.exception()):  # The slot was given at the same time.
                self._give_back(client)
            raise

    def _make_room(self, client: str) -> None:
        counts = {name: sum(not p.done() for p in line) for name, line in self._waiting.items()}
        if sum(counts.values()) < self._most:
            return
        longest = max(counts, key=lambda name: counts[name], default=client)
        if counts.get(longest, 0) <= counts.get(client, 0) + 1:
            raise NoRoomError
        latest = next(place for place in reversed(self._waiting[longest]) if not place.done())
        latest.set_exception(NoRoomError())

    def _give_back(self, client: str) -> None:
        """Give a client's slot to the next waiting client, or free it."""
        self._held[client] -= 1
        self._held = +self._held  # Drop clients that hold no slot.
        for name in sorted(self._waiting, key=lambda name: self._held[name]):
            line = self._waiting.pop(name)
            while line:
                if not (place := line.popleft()).done():
                    self._waiting[name] = line
                    self._held[name] += 1
                    place.set_result(None)
                    return
        self._free += 1
