"""Tokenises long texts in threads, so that the event loop stays responsive."""

from collections.abc import Callable
from typing import TypeVar

import fastapi

from serve.engine.threads import Threads, in_thread

T = TypeVar("T")

LONG_BYTES = 20_000
"""Body size that takes about 10 ms to tokenise. Below it a thread would cost more."""

templating = Threads("templates", 2).run
"""Runs work that renders a template: never on the event loop, however short it is."""


async def tokenising(request: fastapi.Request, work: Callable[[], T]) -> T:
    """Run tokenisation work for this request. Tokenizers release Python's global lock."""
    if len(await request.body()) < LONG_BYTES:
        return work()
    return await in_thread(work)
