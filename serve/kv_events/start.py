"""Starts to publish, where that was asked for; without it nothing of ZeroMQ is imported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from serve.kv_events.config import KVEventsConfig

if TYPE_CHECKING:
    from serve.kv_events.publisher import KVEventPublisher

EXPOSED = "; whoever can connect reads prompts there"


@contextmanager
def publishing(
    config: KVEventsConfig | None, say: Callable[[str], object]
) -> "Iterator[KVEventPublisher | None]":
    """A publisher for the time of the block, and a line of where; ValueError for endpoints that
    can't be used."""
    if config is None:
        yield None
        return
    from serve.kv_events.publisher import KVEventPublisher  # Needs the extra kv-events.

    with KVEventPublisher(config) as publisher:
        say(f"{publisher}" + (EXPOSED if config.exposed else ""))
        yield publisher
