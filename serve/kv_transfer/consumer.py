"""Pulls the pages that another server keeps for one request into the host's memory."""

import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from eagle3_jax.engine.kv.tiers.tier import KeyedSlot, PageBytes, Place
from serve.kv_transfer.breaker import Breaker
from serve.kv_transfer.config import PULL_S
from serve.kv_transfer.sparse_log import SparseLog
from serve.kv_transfer.wire import (
    HELLO_S,
    Clock,
    Connection,
    RefusedError,
    TransferError,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemotePrompt:
    """What a producer keeps: so many pages of a prompt, from its first on, of which the last has
    this key, which stands for all tokens before it too. A client states all of it."""

    host: str
    port: int
    transfer_id: str
    pages: int
    last_key: bytes

    @property
    def address(self) -> tuple[str, int]:
        """Of the producer."""
        return self.host, self.port


@dataclass
class PullCounts:
    """What has come: pages, their bytes, and pages that failed."""

    pages: int = 0
    bytes: int = 0
    failed: int = 0


class Puller:
    """Runs the pulls of all requests of a server, each in a thread of its own, as many as the
    producer's breaker lets begin. A pull has `pull_s` seconds for everything."""

    def __init__(
        self,
        pages: PageBytes,
        fingerprint: str,
        *,
        shared_key: bytes = b"",
        pull_s: float = PULL_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self.pages, self.fingerprint, self.counts = pages, fingerprint, PullCounts()
        self.shared_key, self.pull_s, self.clock = shared_key, pull_s, clock
        self.log = SparseLog(logger, clock)
        self._breakers: dict[tuple[str, int], Breaker] = {}

    def begin(self, producer: tuple[str, int], pull: Callable[[], bool]) -> bool:
        """Begins a pull, which returns whether the producer worked. False: it may not begin now.
        No pull is waited for when the server ends."""
        breaker = self._breakers.setdefault(producer, Breaker(self.clock))
        if not breaker.enter():
            return False

        def run() -> None:
            breaker.leave(failed=not pull())

        try:
            threading.Thread(target=run, name="kv-pull", daemon=True).start()
        except RuntimeError:  # The system has no thread left.
            breaker.leave(failed=True)
            return False
        return True

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
        """All of the producer's or none. `keys` are of this server's own prompt; what the client
        states is only compared with them, which saves a pull where it is of another prompt."""
        count = self.prompt.pages
        if not count or len(keys) < count or keys[count - 1] != self.prompt.last_key:
            if count:
                self.puller.log.warn("a request's prompt is not the one that its pages are of")
            return 0
        self._indices = {key: index for index, key in enumerate(keys[:count])}
        return count

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        """Begins to fill these slots."""
        self._asked = True
        self._begin(deque(pages))

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
            self._begin(deque())

    def _begin(self, left: deque[KeyedSlot]) -> None:
        deadline = self.puller.clock() + self.puller.pull_s
        if not self.puller.begin(self.prompt.address, partial(self._pull, left, deadline)):
            self._give_up(left)

    def _pull(self, left: deque[KeyedSlot], deadline: float) -> bool:
        """Fills the slots that are left, as far as pages come; whether the producer worked. A
        client can have a producer refuse, but not fail."""
        puller, address = self.puller, self.prompt.address
        hello_s = min(HELLO_S, puller.pull_s)
        try:
            hello_by = puller.clock() + hello_s
            with socket.create_connection(address, timeout=hello_s) as socket_:
                peer = Connection(socket_, "consumer", puller.shared_key, puller.clock, hello_by)
                peer.greet()
                peer.deadline = deadline
                self._exchange(peer, left)
            return True
        except (OSError, TransferError) as error:
            puller.log.warn("pages of %s:%d don't come: %s", *address, error)
            return isinstance(error, RefusedError)
        except Exception:
            logger.exception("pages of %s:%d don't come", *address)
            return False
        finally:
            self._give_up(left)

    def _give_up(self, left: deque[KeyedSlot]) -> None:
        self.puller.counts.failed += len(left)
        while left:
            self._ended.put((left.popleft().slot, False))

    def _exchange(self, peer: Connection, left: deque[KeyedSlot]) -> None:
        """Takes from `left` the slots that are filled. Nothing is stored under a key but the page
        that the producer states to be of that key."""
        store, counts = self.puller.pages, self.puller.counts
        peer.send_json(
            {
                "transfer": self.prompt.transfer_id,
                "fingerprint": self.puller.fingerprint,
                "last_key": self.prompt.last_key.hex(),
                "pages": [self._indices[key] for key, _ in left],
            }
        )
        answer = peer.receive_json()
        if answer.get("page_bytes") != store.page_bytes:
            raise TransferError(f"a page has {answer.get('page_bytes')} bytes there")
        while left:
            key, slot = left[0]
            if peer.receive_json().get("key") != key.hex():
                raise TransferError("the producer sends a page of another prompt")
            store.fill(slot, peer.receive_page(store.page_bytes))
            counts.pages += 1
            counts.bytes += store.page_bytes
            left.popleft()
            self._ended.put((slot, True))
        peer.send_json({"acknowledged": True})
