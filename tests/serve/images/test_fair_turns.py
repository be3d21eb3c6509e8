"""Turns at a few slots, between clients of which one may ask for far more than its share."""

import asyncio
import random
from collections import Counter

import pytest

from serve.images.fair_turns import FairTurns, NoRoomError

SLOTS, MOST = 2, 6


class Work:
    """Clients' work that holds a slot until it is let go."""

    def __init__(self) -> None:
        self.turns = FairTurns(SLOTS, MOST)
        self.order: list[str] = []
        self.tasks: list[tuple[str, asyncio.Task[None]]] = []
        self.poll = asyncio.Semaphore(0)

    async def _hold(self, client: str) -> None:
        async with self.turns.turn(client):
            self.order.append(client)
            assert self.turns._held.total() <= SLOTS
            await self.poll.acquire()

    async def ask(self, clients: str) -> None:
        """One piece of work for each letter."""
        for client in clients:
            self.tasks.append((client, asyncio.create_task(self._hold(client))))
            await asyncio.sleep(0)

    async def end(self) -> Counter[str]:
        """The work that was refused, when all of the rest is done."""
        for _ in self.tasks:
            self.poll.release()
            for _ in range(5):
                await asyncio.sleep(0)
        ends = await asyncio.gather(*(t for _, t in self.tasks), return_exceptions=True)
        assert self.turns._held.total() == 0 and self.turns._free == SLOTS
        pairs = zip(self.tasks, ends, strict=True)
        return Counter(client for (client, _), end in pairs if isinstance(end, NoRoomError))


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        ("aaaaaaab", "aabaaaaa"),
        ("aaaabc", "aabaca"),
        ("aaaabbcc", "aabacbac"),
        ("abcab", "abcab"),
    ],
)
def test_the_client_with_the_fewest_slots_is_next(asked: str, order: str) -> None:
    async def test() -> None:
        work = Work()
        await work.ask(asked)
        assert not await work.end()
        assert "".join(work.order) == order

    asyncio.run(test())


def test_a_full_line_has_room_for_a_client_with_less_work_in_it() -> None:
    async def test() -> None:
        work = Work()
        await work.ask("a" * (SLOTS + MOST + 3) + "bbbbb" + "c")
        assert await work.end() == {"a": 3 + 4, "b": 2}
        assert Counter(work.order) == {"a": SLOTS + 2, "b": 3, "c": 1}

    asyncio.run(test())


def test_work_that_is_given_up_leaves_no_slot_behind() -> None:
    async def test() -> None:
        choices = random.Random(5)
        for _ in range(50):
            work = Work()
            await work.ask("".join(choices.choices("abc", k=9)))
            for _, task in choices.sample(work.tasks, 4):
                if choices.random() < 0.5:
                    work.poll.release()
                    await asyncio.sleep(0)
                task.cancel()
            await work.end()

    asyncio.run(test())
