"""A few slots for slow work, shared fairly between the clients that wait for them."""

from asyncio import CancelledError, Future, get_running_loop
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NoRoomError(Exception):
    """Too much work waits."""


class FairTurns:
    """Gives a free slot to the client that holds the fewest; of equals, to the one that was served
    longest ago. Used from one event loop.

    Args:
        slots: How much work is done at a time.
        most_waiting: How much may wait. Beyond that the client with the most waiting work loses its
            latest, if it has more than the client that comes; otherwise this one is refused.
    """

    def __init__(self, slots: int, most_waiting: int) -> None:
        self._free, self._most = slots, most_waiting
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[Future[None]]] = {}  # Served longest ago first.

    @property
    def num_held(self) -> int:
        """Slots that are not free."""
        return self._held.total()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Waits for a slot and holds it.

        Raises:
            NoRoomError: Too much waits, now or before the slot is free.
        """
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
            if not (place.cancelled() or place.exception()):  # The slot came at the same time.
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
        """Gives the slot of a client to the next one, or to whoever comes."""
        self._held[client] -= 1
        self._held = +self._held  # Without the clients that hold none.
        for name in sorted(self._waiting, key=lambda name: self._held[name]):
            line = self._waiting.pop(name)
            while line:
                if not (place := line.popleft()).done():
                    self._waiting[name] = line
                    self._held[name] += 1
                    place.set_result(None)
                    return
        self._free += 1
