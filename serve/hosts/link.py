"""One TCP connection between two processes: frames, signs of life, and word of a peer that is gone.

Beats go out from a thread of their own and everything is read in another, so that a process whose
main thread waits for a device still tells that it lives, and learns that its peer does not.
"""

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

BEAT_S = 2.0
SILENCE_S = 20.0
"""After so long without a byte a peer counts as lost."""
_HEADER = struct.Struct("<BI")
_LARGEST = 2**30


class Kind(IntEnum):
    """What a frame says. Texts are UTF-8."""

    HELLO = 1  # who I am and what I would run: a JSON object
    WELCOME = 2  # all are here and agree
    REFUSED = 3  # why not: text
    BEAT = 4
    COMPILED = 5
    CALL = 6  # eagle3_jax.engine.programs.call
    DRAIN = 7  # asks process 0 to stop as if it had the signal itself
    STOP = 8  # there will be no more calls
    FAILED = 9  # the sender ends because of this: text


class PeerLost(Exception):
    """A process that this one can't go on without is gone."""


class Link:
    """A connection to a peer, `name` to users. One thread may receive, any may send."""

    def __init__(self, connection: socket.socket, name: str):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(SILENCE_S)
        self.name = name
        self._connection = connection
        self._sending = threading.Lock()
        self._closing = threading.Event()

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Sends one frame; PeerLost where nobody takes it."""
        try:
            with self._sending:
                self._connection.sendall(_HEADER.pack(kind, len(payload)) + payload)
        except OSError as error:
            raise PeerLost(self._lost(error)) from error

    def receive(self) -> tuple[Kind, bytes]:
        """Waits for one frame; PeerLost where none comes in time, or what comes is none."""
        try:
            kind, length = _HEADER.unpack(self._read(_HEADER.size))
            if length > _LARGEST:
                raise ValueError(f"a frame of {length} bytes")
            return Kind(kind), self._read(length)
        except (OSError, ValueError) as error:
            raise PeerLost(self._lost(error)) from error

    def patience(self, seconds: float) -> None:
        """How long one send or receive may take; SILENCE_S at first."""
        self._connection.settimeout(seconds)

    def start(
        self, on_frame: Callable[[Kind, bytes], None], on_lost: Callable[[str], None]
    ) -> None:
        """Beats from now on, and calls back from a thread: for every frame that is no beat, and
        once when the peer is lost, unless it was let go."""
        threading.Thread(target=self._beat, name=f"beats {self.name}", daemon=True).start()
        reading = threading.Thread(
            target=self._follow, args=(on_frame, on_lost), name=f"reads {self.name}", daemon=True
        )
        reading.start()

    def let_go(self) -> None:
        """From now on the peer may end without being missed."""
        self._closing.set()

    def close(self) -> None:
        """Lets the peer go and ends the connection."""
        self.let_go()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _beat(self) -> None:
        while not self._closing.wait(BEAT_S):
            try:
                self.send(Kind.BEAT)
            except PeerLost:
                return  # The reader tells.

    def _follow(
        self, on_frame: Callable[[Kind, bytes], None], on_lost: Callable[[str], None]
    ) -> None:
        try:
            while True:
                kind, payload = self.receive()
                if kind is not Kind.BEAT:
                    on_frame(kind, payload)
        except PeerLost as error:
            if not self._closing.is_set():
                on_lost(str(error))

    def _read(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self._connection.recv(min(length - len(parts), 2**20))
            if not part:
                raise ConnectionError
            parts += part
        return bytes(parts)

    def _lost(self, error: Exception) -> str:
        reason = str(error)
        if isinstance(error, TimeoutError):
            silence = self._connection.gettimeout() or SILENCE_S
            reason = f"silent for {silence:g} s, so it has stopped, or the network between us has"
        elif isinstance(error, ConnectionError):
            reason = "it closed the connection, so it has ended or was killed"
        return f"lost {self.name}: {reason}"
