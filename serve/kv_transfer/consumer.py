"""Pulls the pages that another server keeps for one request into the host's memory."""

import logging
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from eagle3_jax.engine.kv.tiers.tier import KeyedSlot, PageBytes, Place
from serve.kv_transfer.wire import SOCKET_S, TransferError, receive_line, receive_page, send_line

logger = logging.getLogger(__name__)
MOST_PULLS = 4
CONNECT_S = 5.0


@dataclass(frozen=True)
class RemotePrompt:
    """What a producer keeps: so many pages of a prompt, from its first on, of which the last has
    this key, which stands for all tokens before it too."""

    host: str
    port: int
    transfer_id: str
    pages: int
    last_key: bytes


@dataclass
class PullCounts:
    """What has come: pages, their bytes, and pages that failed."""

    pages: int = 0
    bytes: int = 0
    failed: int = 0


class Puller:
    """The threads that pull, for all requests of a server; few pull at a time."""

    def __init__(self, pages: PageBytes, fingerprint: str) -> None:
        self.pages, self.fingerprint, self.counts = pages, fingerprint, PullCounts()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(MOST_PULLS):
            threading.Thread(target=self._work, name="kv-pull", daemon=True).start()

    def pull_soon(self, job: Callable[[], None]) -> None:
        """Has a thread call this; none is waited for when the server ends."""
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()

    def source(self, prompt: RemotePrompt) -> "RemotePages":
        """The pages of one request."""
        return RemotePages(prompt, self)


@dataclass(eq=False)
class RemotePages:
    """A `PageSource` of one prompt."""

    prompt: RemotePrompt
    puller: Puller
    place: Place = "remote"
    _indices: dict[bytes, int] = field(default_factory=dict)
    _ended: "queue.SimpleQueue[tuple[int, bool]]" = field(default_factory=queue.SimpleQueue)
    _asked: bool = False

    def match(self, keys: Sequence[bytes]) -> int:
        """All of the producer's or none: its last key stands for the whole prompt before it."""
        count = self.prompt.pages
        if not count or len(keys) < count or keys[count - 1] != self.prompt.last_key:
            if count:
                logger.warning("a prompt is not the one that its pages are of: it is run here")
            return 0
        self._indices = {key: index for index, key in enumerate(keys[:count])}
        return count

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        """Begins to fill these slots."""
        self._asked = True
        self.puller.pull_soon(partial(self._pull, list(pages)))

    def done(self) -> list[tuple[int, bool]]:
        """Slots that are filled, or will not be."""
        ended: list[tuple[int, bool]] = []
        while not self._ended.empty():
            ended.append(self._ended.get())
        return ended

    def finish(self) -> None:
        """The request needs nothing more: the producer may let go of what was not asked for."""
        if not self._asked:
            self._asked = True
            self.puller.pull_soon(partial(self._pull, []))

    def _pull(self, pages: list[KeyedSlot]) -> None:
        left, counts = list(pages), self.puller.counts
        try:
            address = self.prompt.host, self.prompt.port
            with socket.create_connection(address, timeout=CONNECT_S) as peer:
                peer.settimeout(SOCKET_S)
                self._exchange(peer, left)
        except (OSError, TransferError) as error:
            logger.warning("pages of another server don't come: %s", error)
        except Exception:
            # The thread goes on with other requests.
            logger.exception("pages of another server don't come")
        finally:
            counts.failed += len(left)
            for _, slot in left:
                self._ended.put((slot, False))

    def _exchange(self, peer: socket.socket, left: list[KeyedSlot]) -> None:
        """Takes from `left` what has come or is known to be wrong."""
        indices = [self._indices[key] for key, _ in left]
        name, fingerprint = self.prompt.transfer_id, self.puller.fingerprint
        send_line(peer, {"transfer": name, "fingerprint": fingerprint, "pages": indices})
        answer, store, counts = receive_line(peer), self.puller.pages, self.puller.counts
        if (error := answer.get("error")) is not None:
            raise TransferError(str(error)[:200])
        if answer.get("page_bytes") != store.page_bytes:
            raise TransferError(f"a page has {answer.get('page_bytes')} bytes there")
        while left:
            page = receive_page(peer, store.page_bytes)
            slot = left[0].slot
            if page is None:
                logger.warning("a page of another server came with a wrong checksum")
                counts.failed += 1
            else:
                store.fill(slot, page)
                counts.pages += 1
                counts.bytes += store.page_bytes
            del left[0]
            self._ended.put((slot, page is not None))
        send_line(peer, {"acknowledged": True})
