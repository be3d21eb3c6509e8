"""Tokenises long texts in threads, so that the event loop serves others meanwhile."""

from collections.abc import Callable
from typing import TypeVar

import fastapi

from serve.engine.threads import Threads, in_thread

T = TypeVar("T")

LONG_BYTES = 20_000
"""A body that takes about 10 ms to tokenise; a thread for shorter ones would cost more."""

templating = Threads("templates", 2).run
"""Work that waits for a template, however long it is: never on the event loop."""


async def tokenising(request: fastapi.Request, work: Callable[[], T]) -> T:
    """Does the work on the texts of this request; the tokenizers' own code leaves the lock free."""
    if len(await request.body()) < LONG_BYTES:
        return work()
    return await in_thread(work)
