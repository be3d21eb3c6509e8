"""Both ends of page transfers without engines: slots, page servers, other peers, and pulls."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from probe import wait_for

from eagle3_jax.engine.kv.transfers import PromptPages
from eagle3_jax.engine.page_tiers import KeyedSlot
from serve.kv_transfer.consumer import Puller, RemotePages, RemotePrompt
from serve.kv_transfer.producer import PageServer

PAGES, SIZE = 24, 1 << 18
KEYS = [number.to_bytes(32, "big") for number in range(PAGES)]
SLOTS = [KeyedSlot(key, number) for number, key in enumerate(KEYS)]
"""Of a prompt, which producers keep as "a"."""


class Store:
    """Slots of an engine that takes pages, or hands out pages that are full of their number."""

    page_bytes, fingerprint = SIZE, b"f" * 32

    def __init__(self) -> None:
        self.filled: dict[int, np.ndarray] = {}

    def bytes_of(self, slot: int) -> np.ndarray:
        return np.full(SIZE, slot, np.uint8)

    def fill(self, slot: int, data: np.ndarray) -> None:
        self.filled[slot] = data

    def has_right_pages(self) -> bool:
        return all((page == slot).all() for slot, page in self.filled.items())


eventually = partial(wait_for, most_s=30.0)


def keep(server: PageServer, *names: str) -> None:
    """Make the prompt's pages ready under these names."""
    for name in names:
        server.announce(name)
        server.offer(PromptPages(name, SLOTS))


@contextmanager
def producing(
    *names: str,
    store: Store | None = None,
    expiry_s: float = 60.0,
    release: Callable[[str], object] = lambda name: None,
    **options: Any,
) -> Iterator[PageServer]:
    """Run a page server that keeps the prompt under these names, or as "a"."""
    server = PageServer(("127.0.0.1", 0), store or Store(), "f", expiry_s, release, **options)
    keep(server, *names or ("a",))
    yield server
    server.close()


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a peer that serves connections, one after the other, until it raises OSError."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def loop() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer, suppress(OSError):
                    serve(peer)

        threading.Thread(target=loop, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def begun(puller: Puller, port: int, name: str = "a", keys: list[bytes] = KEYS) -> RemotePages:
    """A pull of the whole prompt."""
    source = RemotePages(RemotePrompt("127.0.0.1", port, name, PAGES, keys[-1]), puller)
    assert source.match(keys) == PAGES
    source.load(SLOTS)
    return source


def ended(source: RemotePages) -> dict[int, bool]:
    """Wait until each page has ended, once, and return which pages came."""
    found: list[tuple[int, bool]] = []
    eventually(lambda: found.extend(source.poll()) or len(found) >= PAGES)
    assert sorted(slot for slot, _ in found) == list(range(PAGES))
    return dict(found)


def pulled(
    store: Store, port: int, wait: Callable[[], object] = lambda: None, **options: Any
) -> dict[int, bool]:
    """Pull all pages and return which came; `wait` is called meanwhile. options: of the puller."""
    puller = Puller(store, "f", **options)
    source = begun(puller, port)
    wait()
    found = ended(source)
    assert puller.counts.failed == list(found.values()).count(False)
    return found
