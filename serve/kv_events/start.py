"""Start publishing if it is configured; otherwise ZeroMQ is not imported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from serve.kv_events.config import KVEventsConfig

if TYPE_CHECKING:
    from serve.kv_events.publisher import KVEventPublisher

EXPOSED = "; whoever can connect reads prompts there"


@contextmanager
def publishing(
    config: KVEventsConfig | None, notify: Callable[[str], object]
) -> "Iterator[KVEventPublisher | None]":
    """Publish during the block and report the endpoints; ValueError for unusable ones."""
    if config is None:
        yield None
        return
    from serve.kv_events.publisher import KVEventPublisher  # Needs the extra kv-events.

    with KVEventPublisher(config) as publisher:
        notify(f"{publisher}" + (EXPOSED if config.exposed else ""))
        yield publisher
