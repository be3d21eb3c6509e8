"""Writes JSON in pieces, so that the event loop serves other requests between them.

Long answers take turns: one of them at a time is being encoded, for TURN_S seconds.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from weakref import WeakKeyDictionary

from convert.text.json_pieces import PIECE_CHARS, encoded

TURN_S = 0.005
FREE_S = 0.001
"""Time for the start of every answer or event, which waits for no turn. It suffices for most."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def in_turns(texts: Iterable[str]) -> AsyncIterator[bytes]:
    """Yield the joined texts in pieces of at least PIECE_CHARS characters; the last may be shorter.

    Texts are produced during the answer's turns, so that a piece may take several turns.
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
    """Move the texts of one turn, at most a piece, to `taken`. Returns whether more may follow."""
    end, size = time.monotonic() + seconds, 0
    for text in texts:
        taken.append(text)
        size += len(text)
        if size >= PIECE_CHARS or time.monotonic() > end:
            return True
    return False
