"""The protocol in which two servers move pages over one TCP connection.

Each end first sends its hello, the line "eagle3-kv 2 NONCE". Messages follow: the length of the
body in 4 bytes, a MAC of 32 bytes, and the body. The MAC is HMAC-SHA256 under a key that both ends
derive from the shared key and from both nonces. It covers the role of the sender, the number of the
message and the body, so that a message is valid once, in its place, in its connection. Without a
shared key the MAC is a checksum.

consumer: {"transfer": name, "fingerprint": text, "last_key": text, "pages": [index, ...]}
producer: {"page_bytes": n}, then for each page {"key": text} and a message with its bytes
producer, in place of any of these: {"error": text}
consumer: {"acknowledged": true}, after which the producer releases the pages
"""

import hmac
import json
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import numpy as np

VERSION = "2"
BUSY = "busy"
"""In place of a nonce: the producer has no place for another connection."""
NONCE_BYTES, LENGTH_BYTES, MAC_BYTES = 16, 4, 32
MOST_HELLO, MOST_JSON = 64, 2**20
HELLO_S = 5.0
"""For the hello of the other end, and at a producer for the request too."""
Role = Literal["producer", "consumer"]
Clock = Callable[[], float]


class TransferError(Exception):
    """A connection can't go on; the message says why."""


class RefusedError(TransferError):
    """The producer works, and does not give these pages; the message says why."""


class Connection:
    """One end of a connection. Every call raises TimeoutError once `deadline` has passed, however
    much arrived before, and TransferError for bytes that the protocol does not allow."""

    def __init__(
        self, peer: socket.socket, role: Role, shared_key: bytes, clock: Clock, deadline: float
    ) -> None:
        """deadline: as `clock` tells the time."""
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.deadline = deadline
        self._peer, self._clock, self._key = peer, clock, shared_key
        self._role: Role = role
        self._other: Role = "consumer" if role == "producer" else "producer"
        self._numbers: dict[Role, int] = {"producer": 0, "consumer": 0}

    def greet(self) -> None:
        """Exchanges hellos and derives the key of this connection."""
        ours = secrets.token_hex(NONCE_BYTES)
        self._send(hello(ours))
        theirs = self._receive_nonce()
        nonces = ours + theirs if self._role == "producer" else theirs + ours
        self._key = hmac.digest(self._key, nonces.encode(), "sha256")

    def send_json(self, message: dict[str, Any]) -> None:
        """Sends an object."""
        body = json.dumps(message).encode()
        self._send(self._head(body) + body)

    def receive_json(self) -> dict[str, Any]:
        """Receives an object. Raises RefusedError with the reason of one that has an error."""
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
        """Sends uint8[page_bytes]."""
        data = np.ascontiguousarray(page).data
        self._send(self._head(data))
        self._send(data)

    def receive_page(self, page_bytes: int) -> np.ndarray:
        """Receives uint8[page_bytes]."""
        return self._receive_body(lambda length: length == page_bytes)

    def _receive_body(self, allowed: Callable[[int], bool]) -> np.ndarray:
        """The body of the next message, uint8[length], if its length is allowed."""
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
        self._peer.settimeout(self._left())
        self._peer.sendall(data)

    def _fill(self, view: memoryview) -> None:
        while view:
            self._peer.settimeout(self._left())
            count = self._peer.recv_into(view)
            if not count:
                raise TransferError("the other end has closed the connection")
            view = view[count:]

    def _left(self) -> float:
        """Seconds until the deadline; a socket's timeout alone begins anew with every byte."""
        if (left := self.deadline - self._clock()) <= 0:
            raise TimeoutError("the time for the transfer is over")
        return left


def hello(nonce: str) -> bytes:
    """The first line of each end."""
    return f"eagle3-kv {VERSION} {nonce}\n".encode()
