"""Ping events, which keep proxies from closing an idle connection."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

PING: dict[str, Any] = {"type": "ping"}
PING_S = 10.0


async def with_pings(
    events: AsyncIterator[list[dict[str, Any]]], every_s: float = PING_S
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield the same lists of events, and a ping after every `every_s` seconds without one."""
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
