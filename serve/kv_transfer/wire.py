"""Protocol by which two servers transfer pages over one TCP connection.

Each end first sends its hello, the line "eagle3-kv 2 NONCE". Messages follow: the length of the
body in 4 bytes, a MAC of 32 bytes, and the body. The MAC is HMAC-SHA256 under a key derived from
the shared key and both nonces. It covers the role of the sender, the number of the message and the
body, so that a message is valid only once, in its place, in its connection. Without a shared key
the MAC is a checksum.

consumer: {"transfer": name, "fingerprint": text, "last_key": text, "pages": [index, ...]}
producer: {"page_bytes": n}, then for each page {"key": text} and a message with its bytes
producer, instead of any of these: {"error": text}
consumer: {"acknowledged": true}, after which the producer releases the pages
"""

import hmac
import json
import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import numpy as np

VERSION = "2"
BUSY = "busy"
"""Sent instead of a nonce: the producer accepts no more connections."""
NONCE_BYTES, LENGTH_BYTES, MAC_BYTES = 16, 4, 32
MOST_HELLO, MOST_JSON = 64, 2**20
HELLO_S = 5.0
"""Timeout for the other end's hello, at a producer also for the request."""
LOG_S = 10.0
Role = Literal["producer", "consumer"]
Clock = Callable[[], float]


class TransferError(Exception):
    """A connection cannot continue; the message says why."""


class RefusedError(TransferError):
    """A working producer does not send these pages; the message says why."""


class Connection:
    """One end of a connection; TransferError for bytes that violate the protocol.

    Every call raises TimeoutError after `deadline`, however much has arrived.
    """

    def __init__(
        self, peer: socket.socket, role: Role, shared_key: bytes, clock: Clock, deadline: float
    ) -> None:
        """Prepare the socket; `deadline` is a time of `clock`."""
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.deadline = deadline
        self._peer, self._clock, self._key = peer, clock, shared_key
        self._role: Role = role
        self._other: Role = "consumer" if role == "producer" else "producer"
        self._numbers: dict[Role, int] = {"producer": 0, "consumer": 0}

    def greet(self) -> None:
        """Exchange hellos and derive the connection's key."""
        ours = secrets.token_hex(NONCE_BYTES)
        self._send(hello(ours))
        theirs = self._receive_nonce()
        nonces = ours + theirs if self._role == "producer" else theirs + ours
        self._key = hmac.digest(self._key, nonces.encode(), "sha256")

    def send_json(self, message: dict[str, Any]) -> None:
        """Send a JSON object."""
        body = json.dumps(message).encode()
        self._send(self._head(body) + body)

    def receive_json(self) -> dict[str, Any]:
        """Receive a JSON object; RefusedError if it states an error."""
        body = self._receive_body(lambda length: length <= MOST_JSON)
        try:
            message = json.loads(body.tobytes())
        except (ValueError, RecursionError) as error:
            raise TransferError("a message is not valid JSON") from error
        if not isinstance(message, dict):
            raise TransferError("a message is not a JSON object")
        if (reason := message.get("error")) is not None:
            raise RefusedError(str(reason)[:200])
        return message

    def send_page(self, page: np.ndarray) -> None:
        """Send uint8[page_bytes]."""
        data = np.ascontiguousarray(page).data
        self._send(self._head(data))
        self._send(data)

    def receive_page(self, page_bytes: int) -> np.ndarray:
        """Receive uint8[page_bytes]."""
        return self._receive_body(lambda length: length == page_bytes)

    def _receive_body(self, allowed: Callable[[int], bool]) -> np.ndarray:
        """Receive the next message's body, uint8[length], if its length is allowed."""
        head = bytearray(LENGTH_BYTES + MAC_BYTES)
        self._fill(memoryview(head))
        length, mac = int.from_bytes(head[:LENGTH_BYTES], "big"), head[LENGTH_BYTES:]
        if not allowed(length):
            raise TransferError(f"a message has {length} bytes, which is not allowed here")
        body = np.empty(length, np.uint8)
        self._fill(body.data)
        if not hmac.compare_digest(mac, self._mac(self._other, body.data)):
            raise TransferError(
                "a message was changed on its way, or the other end has another key: both need the "
                "same --kv-transfer-key-file"
            )
        return body

    def _receive_nonce(self) -> str:
        line = bytearray()
        while not line.endswith(b"\n"):
            if len(line) == MOST_HELLO:
                raise TransferError("the other end does not speak the page protocol")
            byte = bytearray(1)
            self._fill(memoryview(byte))
            line += byte
        match line.decode("ascii", "replace").split():
            case ["eagle3-kv", version, nonce] if version == VERSION:
                if nonce == BUSY:
                    raise RefusedError("the producer serves as many connections as it can")
                with suppress(ValueError):
                    if len(bytes.fromhex(nonce)) == NONCE_BYTES:
                        return nonce
            case ["eagle3-kv", version, *_]:
                raise TransferError(
                    f"the other end speaks version {version!r} of the page protocol, this one "
                    f"{VERSION!r}: run the same release at both ends"
                )
            case _:
                pass
        raise TransferError("the other end does not speak the page protocol")

    def _head(self, body: bytes | memoryview) -> bytes:
        return len(body).to_bytes(LENGTH_BYTES, "big") + self._mac(self._role, body)

    def _mac(self, sender: Role, body: bytes | memoryview) -> bytes:
        number = self._numbers[sender]
        self._numbers[sender] += 1
        mac = hmac.new(self._key, f"{sender} {number}\n".encode(), "sha256")
        mac.update(body)
        return mac.digest()

    def _send(self, data: bytes | memoryview) -> None:
        self._peer.settimeout(self._seconds_left())
        self._peer.sendall(data)

    def _fill(self, view: memoryview) -> None:
        while view:
            self._peer.settimeout(self._seconds_left())
            count = self._peer.recv_into(view)
            if not count:
                raise TransferError("the other end has closed the connection")
            view = view[count:]

    def _seconds_left(self) -> float:
        """Return the seconds to the deadline; a socket's timeout restarts with every byte."""
        if (left := self.deadline - self._clock()) <= 0:
            raise TimeoutError("the time for the transfer is over")
        return left


def hello(nonce: str) -> bytes:
    """Return the first line that each end sends."""
    return f"eagle3-kv {VERSION} {nonce}\n".encode()


class RateLimitedLog:
    """A log of one warning per LOG_S seconds, with the number of suppressed warnings."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger, self._clock = logger, clock
        self._next, self._left_out = -float("inf"), 0

    def warn(self, text: str, *arguments: object) -> None:
        """Log the warning, or count it."""
        if (now := self._clock()) < self._next:
            self._left_out += 1
            return
        more = f" ({self._left_out} warnings before it were left out)" if self._left_out else ""
        self._next, self._left_out = now + LOG_S, 0
        self._logger.warning(text + more, *arguments)
