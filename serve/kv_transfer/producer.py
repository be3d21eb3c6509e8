"""Send pages that an engine keeps to other servers, and decide when they may be released."""

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from eagle3_jax.engine.kv.transfers import PromptPages
from eagle3_jax.engine.page_tiers import KeyedSlot, PageBytes
from serve.kv_transfer.config import PULL_S
from serve.kv_transfer.wire import (
    BUSY,
    HELLO_S,
    Clock,
    Connection,
    RateLimitedLog,
    TransferError,
    hello,
)

logger = logging.getLogger(__name__)
MOST_CONNECTIONS = 64
READY_S = 10.0
"""Time that a consumer waits for pages that are still being saved."""
LOOK_S = 0.2


class PageServer:
    """A server that sends kept pages, until it is closed, to peers that have `shared_key`.

    `release` is called once per name, from any thread, when its pages are acknowledged or
    `expiry_s` after the answer. `pull_s` limits one connection.
    """

    def __init__(
        self,
        address: tuple[str, int],
        pages: PageBytes,
        fingerprint: str,
        expiry_s: float,
        release: Callable[[str], object],
        *,
        shared_key: bytes = b"",
        pull_s: float = PULL_S,
        clock: Clock = time.monotonic,
    ) -> None:
        """Start listening; OSError for an unavailable address."""
        self.fingerprint, self._pages = fingerprint, pages
        self._expiry_s, self._release = expiry_s, release
        self._shared_key, self._pull_s, self._clock = shared_key, pull_s, clock
        self._log = RateLimitedLog(logger, clock)
        self._deadlines: dict[str, float] = {}
        self._ready: dict[str, list[KeyedSlot]] = {}
        self._changed = threading.Condition()
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._closing = threading.Event()
        self.acknowledged = self.expired = self.bytes_sent = 0
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family)
        self._listener.settimeout(LOOK_S)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        loops = (("kv-transfer", self._listen), ("kv-expiry", self._watch_deadlines))
        self._threads = [threading.Thread(target=t, name=n, daemon=True) for n, t in loops]
        for thread in self._threads:
            thread.start()

    def announce(self, name: str) -> None:
        """Register a name before a client receives it; consumers wait for its pages."""
        with self._changed:
            self._deadlines[name] = math.inf

    def start_expiry(self, name: str) -> None:
        """Start a name's expiry when the answer that states it is sent."""
        with self._changed:
            if name in self._deadlines:
                self._deadlines[name] = self._clock() + self._expiry_s

    def release_unanswered(self, name: str) -> None:
        """Release a name that no answer has stated."""
        if self._deadlines.get(name) == math.inf:
            self.release(name)

    def offer(self, export: PromptPages) -> None:
        """Make a name's pages readable, or release them if the name is no longer kept."""
        with self._changed:
            if known := export.name in self._deadlines:
                self._ready[export.name] = export.pages
                self._changed.notify_all()
        if not known:
            self._release(export.name)

    @property
    def num_kept(self) -> int:
        """Number of names announced and not released."""
        return len(self._deadlines)

    def close(self) -> None:
        """Stop accepting connections."""
        self._closing.set()
        for thread in self._threads:
            thread.join(2 * LOOK_S)
        self._listener.close()

    def release(self, name: str, *, acknowledged: bool = False) -> None:
        """Release a name, unless it was released before."""
        with self._changed:
            known = self._deadlines.pop(name, None) is not None
            self._ready.pop(name, None)
            self.acknowledged += known and acknowledged
            self._changed.notify_all()
        if known:
            self._release(name)

    def _listen(self) -> None:
        """Accept connections; a temporary lack of descriptors or threads does not end the loop."""
        while not self._closing.is_set():
            try:
                self._begin(*self._listener.accept())
            except TimeoutError:
                continue
            except (OSError, RuntimeError) as error:
                self._log.warn("can't accept connections for pages now: %s", error)
                self._closing.wait(LOOK_S)

    def _begin(self, peer: socket.socket, address: Any) -> None:
        """Serve a connection in a new thread."""
        if not self._connections.acquire(blocking=False):
            with peer, suppress(OSError):
                peer.sendall(hello(BUSY))
            return
        try:
            threading.Thread(target=self._serve, args=(peer, address[0]), daemon=True).start()
        except RuntimeError:
            self._connections.release()
            peer.close()
            raise

    def _watch_deadlines(self) -> None:
        while not self._closing.wait(LOOK_S):
            self._expire()

    def _expire(self) -> None:
        now = self._clock()
        for name in [name for name, end in list(self._deadlines.items()) if end < now]:
            logger.warning("pages for another server were not fetched in %g s", self._expiry_s)
            self.expired += 1
            self.release(name)

    def _serve(self, peer: socket.socket, host: str) -> None:
        try:
            with peer:
                hello_by = self._clock() + HELLO_S
                key, clock = self._shared_key, self._clock
                self._answer(Connection(peer, "producer", key, clock, hello_by))
        except (OSError, TransferError) as error:
            self._log.warn("a transfer of pages to %s broke off: %s", host, error)
        finally:
            self._connections.release()

    def _answer(self, peer: Connection) -> None:
        peer.greet()
        try:
            self._send_pages(peer)
        except TransferError as error:
            with suppress(OSError):
                peer.send_json({"error": f"{error}"})
            raise

    def _send_pages(self, peer: Connection) -> None:
        requested = peer.receive_json()
        peer.deadline = self._clock() + self._pull_s
        name = str(requested.get("transfer"))
        if requested.get("fingerprint") != self.fingerprint:
            raise TransferError(
                "the two servers' pages differ in model or layout: run the same model and flags at "
                "both ends"
            )
        kept = self._kept(name)
        chosen = _requested_pages(kept, requested) if kept else None
        if chosen is None:
            raise TransferError("the producer does not have these pages, or has released them")
        peer.send_json({"page_bytes": self._pages.page_bytes})
        for key, slot in chosen:
            page = self._pages.bytes_of(slot)
            # Checked after reading: the slot belonged to this name during the whole read.
            if self._ready.get(name) is not kept:
                raise TransferError("the pages were released")
            peer.send_json({"key": key.hex()})
            peer.send_page(page)
            self.bytes_sent += self._pages.page_bytes
        if peer.receive_json().get("acknowledged"):
            self.release(name, acknowledged=True)

    def _kept(self, name: str) -> list[KeyedSlot] | None:
        """Wait until a name's pages are saved; return None if it is not kept."""
        with self._changed:
            self._changed.wait_for(
                lambda: name in self._ready or name not in self._deadlines, READY_S
            )
            return self._ready.get(name)


def _requested_pages(kept: list[KeyedSlot], requested: dict[str, Any]) -> list[KeyedSlot] | None:
    """Return the requested pages; None if one is missing or the last key differs.

    The last key covers every token and image of the prompt, and its salt.
    """
    wanted = requested.get("pages")
    if not isinstance(wanted, list) or requested.get("last_key") != kept[-1].key.hex():
        return None
    if not all(type(index) is int and 0 <= index < len(kept) for index in wanted):
        return None
    return [kept[index] for index in wanted]
