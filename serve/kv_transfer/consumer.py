"""Pull the pages that another server keeps for one request into host memory."""

import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from eagle3_jax.engine.page_tiers import KeyedSlot, PageBytes, PageOrigin
from serve.kv_transfer.config import PULL_S
from serve.kv_transfer.wire import (
    HELLO_S,
    Clock,
    Connection,
    RateLimitedLog,
    RefusedError,
    TransferError,
)

MOST_PULLS = 16
"""Concurrent pulls from one producer. Further requests prefill here; none is queued."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0


class CircuitBreaker:
    """Circuit breaker for pulls from one producer; thread-safe.

    After a failed pull none may begin during a pause, which doubles with each failure. After the
    pause one pull at a time may begin until one succeeds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._active = self._failures = 0
        self._paused_until = -float("inf")

    def acquire(self) -> bool:
        """Begin a pull, which must call `release`; return False if none may begin now."""
        with self._lock:
            most = 1 if self._failures else MOST_PULLS
            if self._active >= most or self._clock() < self._paused_until:
                return False
            self._active += 1
            return True

    def release(self, *, failed: bool) -> None:
        """End a pull. Failures during the pause, of pulls begun before it, count as one."""
        with self._lock:
            self._active -= 1
            now = self._clock()
            if not failed:
                self._failures, self._paused_until = 0, now
            elif now >= self._paused_until:
                pause = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
                self._failures, self._paused_until = self._failures + 1, now + pause


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemotePrompt:
    """A producer's first `pages` pages of a prompt, as a client states them.

    `last_key` is the last page's key, which covers all tokens before it.
    """

    host: str
    port: int
    transfer_id: str
    pages: int
    last_key: bytes

    @property
    def address(self) -> tuple[str, int]:
        """Address of the producer."""
        return self.host, self.port


@dataclass
class TransferCounts:
    """Received pages, their bytes, and failed pages."""

    pages: int = 0
    bytes: int = 0
    failed: int = 0


class Puller:
    """A server's pulls, in a thread each, within breakers' limits and `pull_s` seconds."""

    def __init__(
        self,
        pages: PageBytes,
        fingerprint: str,
        *,
        shared_key: bytes = b"",
        pull_s: float = PULL_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self.pages, self.fingerprint, self.counts = pages, fingerprint, TransferCounts()
        self.shared_key, self.pull_s, self.clock = shared_key, pull_s, clock
        self.log = RateLimitedLog(logger, clock)
        self._breakers: dict[tuple[str, int], CircuitBreaker] = {}

    def begin(self, producer: tuple[str, int], pull: Callable[[], bool]) -> bool:
        """Start `pull`, which returns whether the producer worked; return False if it must wait.

        Its daemon thread does not delay the server's exit.
        """
        breaker = self._breakers.setdefault(producer, CircuitBreaker(self.clock))
        if not breaker.acquire():
            return False

        def run() -> None:
            breaker.release(failed=not pull())

        try:
            threading.Thread(target=run, name="kv-pull", daemon=True).start()
        except RuntimeError:  # The system has no threads left.
            breaker.release(failed=True)
            return False
        return True


@dataclass(eq=False)
class RemotePages:
    """A `PageSource` of one prompt."""

    prompt: RemotePrompt
    puller: Puller
    origin: PageOrigin = "remote"
    _indices: dict[bytes, int] = field(default_factory=dict)
    _ended: "queue.SimpleQueue[tuple[int, bool]]" = field(default_factory=queue.SimpleQueue)
    _requested: bool = False

    def match(self, keys: Sequence[bytes]) -> int:
        """Return the producer's number of pages if they match this prompt's `keys`, else 0.

        The client's statement is only compared with `keys`, to avoid a useless pull.
        """
        count = self.prompt.pages
        if not count or len(keys) < count or keys[count - 1] != self.prompt.last_key:
            if count:
                self.puller.log.warn("a request's prompt is not the one that its pages are of")
            return 0
        self._indices = {key: index for index, key in enumerate(keys[:count])}
        return count

    def load(self, pages: Sequence[KeyedSlot]) -> None:
        """Start filling these slots."""
        self._requested = True
        self._begin(deque(pages))

    def poll(self) -> list[tuple[int, bool]]:
        """Return slots that were filled or have failed."""
        ended: list[tuple[int, bool]] = []
        while not self._ended.empty():
            ended.append(self._ended.get())
        return ended

    def finish(self) -> None:
        """Tell the producer to release its pages, unless they were requested."""
        if not self._requested:
            self._requested = True
            self._begin(deque())

    def _begin(self, left: deque[KeyedSlot]) -> None:
        deadline = self.puller.clock() + self.puller.pull_s
        if not self.puller.begin(self.prompt.address, partial(self._pull, left, deadline)):
            self._give_up(left)

    def _pull(self, left: deque[KeyedSlot], deadline: float) -> bool:
        """Fill slots; return False if the producer failed, which no client can provoke."""
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
            puller.log.warn("can't fetch pages from %s:%d: %s", *address, error)
            return isinstance(error, RefusedError)
        except Exception:
            logger.exception("can't fetch pages from %s:%d", *address)
            return False
        finally:
            self._give_up(left)

    def _give_up(self, left: deque[KeyedSlot]) -> None:
        self.puller.counts.failed += len(left)
        while left:
            self._ended.put((left.popleft().slot, False))

    def _exchange(self, peer: Connection, left: deque[KeyedSlot]) -> None:
        """Receive pages, and remove filled slots from `left`; check each page's stated key."""
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
        if (theirs := answer.get("page_bytes")) != store.page_bytes:
            raise TransferError(
                f"its pages have {theirs!r:.20} bytes, ours {store.page_bytes}: "
                "run the same model and flags at both ends"
            )
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
