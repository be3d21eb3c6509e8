"""Writes JSON in pieces, so that the event loop serves other requests between those of a large one.

Answers of any size take turns: at any time one of them is being written, for TURN_S seconds.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from weakref import WeakKeyDictionary

from convert.text.json_pieces import PIECE_CHARS, encoded

TURN_S = 0.005
FREE_S = 0.001
"""The first part of every answer or event waits for no turn: most are not longer."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def in_turns(texts: Iterable[str]) -> AsyncIterator[bytes]:
    """Yield the texts joined to pieces of at least PIECE_CHARS, but for the last one.

    A text is made in a turn of its answer, so that a piece may take several turns.
    """
    rest, taken = iter(texts), list[str]()
    more = _take(rest, taken, FREE_S)
    while more:
        if sum(map(len, taken)) >= PIECE_CHARS:
            yield encoded("".join(taken))
            taken.clear()
        await asyncio.sleep(0)
        async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            more = _take(rest, taken, TURN_S)
    yield encoded("".join(taken))


def _take(texts: Iterator[str], taken: list[str], seconds: float) -> bool:
    """Take the texts of one turn, no more than a piece; return whether there may be others."""
    end, size = time.monotonic() + seconds, 0
    for text in texts:
        taken.append(text)
        size += len(text)
        if size >= PIECE_CHARS or time.monotonic() > end:
            return True
    return False
