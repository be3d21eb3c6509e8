"""Hands out the pages that an engine keeps for other servers, and says when they may go."""

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from eagle3_jax.engine.kv.tiers.exports import Export
from eagle3_jax.engine.kv.tiers.tier import PageBytes
from serve.kv_transfer.wire import SOCKET_S, TransferError, receive_line, send_line, send_page

logger = logging.getLogger(__name__)
MOST_CONNECTIONS = 16
LOOK_S = 0.2


class PageServer:
    """Listens until it is closed. release: called once for each name that needs to be kept no more:
    acknowledged, or `expiry_s` after it was announced; from any thread."""

    def __init__(
        self,
        address: tuple[str, int],
        pages: PageBytes,
        fingerprint: str,
        expiry_s: float,
        release: Callable[[str], object],
    ) -> None:
        """Raises OSError for an address that can't be had."""
        self.fingerprint, self._pages = fingerprint, pages
        self._expiry_s, self._release = expiry_s, release
        self._deadlines: dict[str, float] = {}
        self._ready: dict[str, list[int]] = {}
        self._changed = threading.Condition()
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._closing = threading.Event()
        self.acknowledged = self.expired = self.bytes_sent = 0
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._listener = socket.create_server(address, family=family)
        self._listener.settimeout(LOOK_S)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._listen, name="kv-transfer", daemon=True)
        self._thread.start()

    def announce(self, name: str) -> None:
        """Somebody will be told this name: who asks waits for its pages."""
        with self._changed:
            self._deadlines[name] = math.inf

    def start_clock(self, name: str) -> None:
        """The answer that has the name goes out."""
        with self._changed:
            if name in self._deadlines:
                self._deadlines[name] = time.monotonic() + self._expiry_s

    def forget_unanswered(self, name: str) -> None:
        """Ends the keeping of a name that no answer has."""
        if self._deadlines.get(name) == math.inf:
            self.forget(name)

    def offer(self, export: Export) -> None:
        """The pages of a name can be read; nobody knows the name any more: they go again."""
        with self._changed:
            if known := export.name in self._deadlines:
                self._ready[export.name] = [slot for _, slot in export.pages]
                self._changed.notify_all()
        if not known:
            self._release(export.name)

    @property
    def num_kept(self) -> int:
        """Names announced and not released."""
        return len(self._deadlines)

    def close(self) -> None:
        """Takes no more connections."""
        self._closing.set()
        self._thread.join(2 * LOOK_S)
        self._listener.close()

    def forget(self, name: str, *, acknowledged: bool = False) -> None:
        """Ends the keeping of a name, unless it has ended."""
        with self._changed:
            known = self._deadlines.pop(name, None) is not None
            self._ready.pop(name, None)
            self.acknowledged += known and acknowledged
            self._changed.notify_all()
        if known:
            self._release(name)

    def _listen(self) -> None:
        while not self._closing.is_set():
            self._expire()
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                peer.close()
                continue
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _expire(self) -> None:
        now = time.monotonic()
        for name in [name for name, end in list(self._deadlines.items()) if end < now]:
            logger.warning("pages for another server were not fetched in %g s", self._expiry_s)
            self.expired += 1
            self.forget(name)

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            peer.settimeout(SOCKET_S)
            try:
                self._answer(peer)
            except (OSError, TransferError) as error:
                logger.warning("a transfer of pages broke off: %s", error)
            finally:
                self._places.release()

    def _answer(self, peer: socket.socket) -> None:
        asked = receive_line(peer)
        name, wanted = str(asked.get("transfer")), asked.get("pages")
        if asked.get("fingerprint") != self.fingerprint:
            send_line(peer, {"error": "the two servers' pages don't mean the same"})
            return
        kept = self._kept(name)
        slots = None if kept is None else _chosen(kept, wanted)
        if slots is None:
            send_line(peer, {"error": "there are no such pages (any more)"})
            return
        send_line(peer, {"page_bytes": self._pages.page_bytes})
        for slot in slots:
            page = self._pages.bytes_of(slot)
            # Asked behind the reading: the slot was the name's all the while, no other page's.
            if self._ready.get(name) is not kept:
                raise TransferError("its time has passed")
            send_page(peer, page)
            self.bytes_sent += self._pages.page_bytes
        if receive_line(peer).get("acknowledged"):
            self.forget(name, acknowledged=True)

    def _kept(self, name: str) -> list[int] | None:
        """The slots of a name's pages, once they are filled; None where it is not kept."""
        with self._changed:
            self._changed.wait_for(
                lambda: name in self._ready or name not in self._deadlines, SOCKET_S
            )
            return self._ready.get(name)


def _chosen(slots: list[int], wanted: Any) -> list[int] | None:
    """Those that somebody asks for by number; None where there is one that is not there."""
    if not isinstance(wanted, list):
        return None
    if not all(type(index) is int and 0 <= index < len(slots) for index in wanted):
        return None
    return [slots[index] for index in wanted]
