"""Send an engine's KV events to subscribers over ZeroMQ, from a separate thread.

A message has three frames: topic, sequence number (8 bytes, big-endian, from 0) and a batch. A
replay request is the first wanted number. Its answers have the same frames; the last one has number
-1 and no batch. Both formats are those of vLLM 0.33.
"""

import queue
import threading
import time
from typing import NamedTuple, Self

import zmq

from eagle3_jax.engine.kv.events import KVEvent, KVEventLog
from serve.kv_events.config import FLAG, KVEventsConfig
from serve.kv_events.encoding import EventEncoder
from serve.kv_events.replays import LONGEST_REQUEST, NUMBER_BYTES, BatchHistory, Replays

LOOK_S, TURN_S = 0.05, 0.002
"""Intervals at which the thread checks for replay requests, and continues a replay, without
events."""
CLOSE_S = 2.0
LINGER_MS = 200


class _Batch(NamedTuple):
    """The changes of one step, and their time."""

    number: int
    seconds: float
    events: list[KVEvent]


class KVEventPublisher:
    """A publisher of the events that an engine writes to `log`; a context manager.

    Leaving the context ends its thread. No call waits for the thread or a subscriber. If the queue
    is full, a batch is dropped and its number is missing. `published` counts sent events, `dropped`
    lost batches.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        """Open the sockets and start the thread; ValueError for unusable endpoints."""
        self.log = KVEventLog()
        self.published = self.dropped = 0
        self._next_number = 0
        self._queue: queue.Queue[_Batch] = queue.Queue(config.max_queue_size)
        self._kept, self._hwm = BatchHistory(config.buffer_steps), config.hwm
        self._topic = config.topic.encode()
        self._encoder = EventEncoder(
            int_hashes=config.int_hashes, lookahead=config.lookahead_token_ids
        )
        self._closing = threading.Event()
        self._context = zmq.Context()
        try:
            self._open(config)
        except ValueError:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def _open(self, config: KVEventsConfig) -> None:
        self._publish = self._context.socket(zmq.PUB)
        self._publish.set_hwm(config.hwm)
        self.endpoint = _attach(self._publish, config.endpoint, "endpoint", listen=config.listens)
        self.replay_endpoint, self._replays = None, None
        if (where := config.replay_endpoint) is not None:
            self._replays = Replays(self._context, self._topic, self._kept)
            self.replay_endpoint = _attach(
                self._replays.socket, where, "replay_endpoint", listen=True
            )

    def __str__(self) -> str:
        """Return a line with the endpoints."""
        replay = self.replay_endpoint
        return f"KV events: {self.endpoint}" + (f", replay {replay}" if replay else "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Send waiting batches, and close the sockets."""
        self._closing.set()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._context.destroy(linger=LINGER_MS)

    def publish(self) -> None:
        """Publish the content of the log; for the engine's thread, between two steps."""
        events = self.log.drain()
        if not events:
            return
        batch = _Batch(self._next_number, time.time(), events)
        self._next_number += 1
        try:
            self._queue.put_nowait(batch)
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        while True:
            replaying = self._replays is not None and self._replays.is_busy
            try:
                self._send(self._queue.get(timeout=TURN_S if replaying else LOOK_S))
            except queue.Empty:
                if self._closing.is_set():
                    return
            if self._replays is not None:
                self._replays.send_replays()

    def _send(self, batch: _Batch) -> None:
        number = batch.number.to_bytes(NUMBER_BYTES, "big")
        payload = self._encoder.encode(batch.seconds, batch.events)
        self._publish.send_multipart((self._topic, number, payload))
        if self._kept.add(batch.number, payload):
            # So a subscriber that does not read queues no more bytes than the batches here.
            self._publish.set_hwm(min(self._hwm, len(self._kept)))
        self.published += len(batch.events)


def _attach(socket: zmq.Socket[bytes], endpoint: str, name: str, *, listen: bool) -> str:
    """Bind or connect the socket; return the endpoint with its actual port."""
    socket.setsockopt(zmq.IPV6, "[" in endpoint)
    socket.setsockopt(zmq.MAXMSGSIZE, LONGEST_REQUEST)
    try:
        socket.bind(endpoint) if listen else socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ValueError(f"{FLAG} {name}: {endpoint}: {error}") from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
