"""Keep the last published batches, and replay them to clients."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import zmq

NUMBER_BYTES = 8
END = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
KEPT_BYTES = 2**26
MOST_REPLAYS = 16
"""Maximum number of concurrent replays; further requests wait in the socket."""
UNREAD_BATCHES = 16
"""Batches in process memory for one client that does not read."""
STALLED_S = 10.0
"""A replay ends if its client takes no batch for this time."""
LONGEST_REQUEST = 1024
"""Maximum bytes of a client's frame."""


class BatchHistory:
    """The last batches by number: at most `steps`, and at most KEPT_BYTES or one batch."""

    def __init__(self, steps: int) -> None:
        self._steps, self._bytes = steps, 0
        self._batches: OrderedDict[int, bytes] = OrderedDict()

    def add(self, number: int, payload: bytes) -> bool:
        """Store a batch; return True if KEPT_BYTES was exceeded."""
        self._batches[number] = payload
        self._bytes += len(payload)
        full = self._bytes > KEPT_BYTES
        while len(self._batches) > self._steps or (self._bytes > KEPT_BYTES and len(self) > 1):
            _, oldest = self._batches.popitem(last=False)
            self._bytes -= len(oldest)
        return full

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def last(self) -> int:
        """Number of the last batch, -1 if there is none."""
        return next(reversed(self._batches), -1)

    def first_from(self, number: int) -> tuple[int, bytes] | None:
        """Return the first batch with this number or a later one."""
        oldest = next(iter(self._batches), 0)
        numbers = range(max(number, oldest), self.last + 1)
        found = next((n for n in numbers if n in self._batches), None)
        return None if found is None else (found, self._batches[found])


@dataclass
class _Replay:
    """A replay: `next` and `last` batch to send, and the time when the client counts as stalled."""

    next: int
    last: int
    until: float


class Replays:
    """A server of replays that never waits: a turn sends clients what their sockets accept.

    A replay ends if its client does not read; a client's new request replaces its old one.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        topic: bytes,
        kept: BatchHistory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.SNDHWM, UNREAD_BATCHES)
        self.socket.setsockopt(zmq.RCVHWM, MOST_REPLAYS)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # Else ZeroMQ drops them.
        self._topic, self._kept, self._clock = topic, kept, clock
        self._active: dict[bytes, _Replay] = {}

    @property
    def is_busy(self) -> bool:
        """True while a replay is running."""
        return bool(self._active)

    def send_replays(self) -> None:
        """Accept requests, and send each client as many batches as fit."""
        while len(self._active) < MOST_REPLAYS and self.socket.poll(0):
            frames = self.socket.recv_multipart()
            if len(frames) == 3 and len(frames[-1]) == NUMBER_BYTES:
                first, until = int.from_bytes(frames[-1], "big"), self._clock() + STALLED_S
                self._active[frames[0]] = _Replay(first, self._kept.last, until)
        for asker, replay in list(self._active.items()):
            if self._advance(asker, replay) or self._clock() > replay.until:
                del self._active[asker]

    def _advance(self, asker: bytes, replay: _Replay) -> bool:
        """Send batches; return True if the replay has ended."""
        try:
            for _ in range(UNREAD_BATCHES):
                found = self._kept.first_from(replay.next)
                if found is None or found[0] > replay.last:
                    self._send(asker, b"", END, b"")
                    return True
                number, payload = found
                self._send(asker, self._topic, number.to_bytes(NUMBER_BYTES, "big"), payload)
                replay.next, replay.until = number + 1, self._clock() + STALLED_S
        except zmq.Again:
            return False
        except zmq.ZMQError:  # The client is gone.
            return True
        return False

    def _send(self, asker: bytes, *frames: bytes) -> None:
        # Without copies, so that a batch is in memory once for all clients that do not read.
        self.socket.send_multipart((asker, b"", *frames), zmq.NOBLOCK, copy=False)
