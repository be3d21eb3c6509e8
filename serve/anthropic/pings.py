"""Pings: events that say nothing, so that nobody between client and server thinks both are gone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

PING: dict[str, Any] = {"type": "ping"}
PING_S = 10.0


async def with_pings(
    events: AsyncIterator[list[dict[str, Any]]], every_s: float = PING_S
) -> AsyncIterator[list[dict[str, Any]]]:
    """The same lists of events, with a ping for every so many seconds without one."""
    while True:
        coming = asyncio.ensure_future(anext(events, None))
        try:
            while not (await asyncio.wait((coming,), timeout=every_s))[0]:
                yield [PING]
        finally:
            coming.cancel()
        if (some := coming.result()) is None:
            return
        yield some
