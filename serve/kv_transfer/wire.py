"""What two servers say to each other: lines of JSON, and pages as bytes behind their checksums.

consumer: {"transfer": name, "fingerprint": text, "pages": [index, ...]}
producer: {"page_bytes": n}, then for each page 4 bytes of CRC-32 and the page; or {"error": text}
consumer: {"acknowledged": true}, behind which the producer keeps nothing
"""

import json
import socket
import zlib
from typing import Any

import numpy as np

SOCKET_S = 30.0
"""For one read or write to go on."""
MOST_LINE = 2**20
CHECKSUM_BYTES = 4


class TransferError(Exception):
    """Pages that don't come; the message says why."""


def send_line(peer: socket.socket, message: dict[str, Any]) -> None:
    """Sends an object."""
    peer.sendall(json.dumps(message).encode() + b"\n")


def receive_line(peer: socket.socket) -> dict[str, Any]:
    """An object; TransferError for anything else."""
    line = bytearray()
    while not line.endswith(b"\n"):
        # A byte at a time, so that nothing of the pages behind it is taken: lines are few.
        piece = peer.recv(1)
        if not piece:
            raise TransferError("the other server has closed the connection")
        line += piece
        if len(line) > MOST_LINE:
            raise TransferError(f"a line has more than {MOST_LINE} bytes")
    try:
        message = json.loads(line)
    except ValueError as error:
        raise TransferError("what came is not JSON") from error
    if not isinstance(message, dict):
        raise TransferError("what came is no JSON object")
    return message


def send_page(peer: socket.socket, page: np.ndarray) -> None:
    """Sends uint8[page_bytes] behind its checksum."""
    data = np.ascontiguousarray(page).data
    peer.sendall(zlib.crc32(data).to_bytes(CHECKSUM_BYTES, "big"))
    peer.sendall(data)


def receive_page(peer: socket.socket, page_bytes: int) -> np.ndarray | None:
    """uint8[page_bytes], None where the checksum is another's."""
    checksum, page = bytearray(CHECKSUM_BYTES), np.empty(page_bytes, np.uint8)
    _fill(peer, memoryview(checksum))
    _fill(peer, page.data)
    return page if zlib.crc32(page.data) == int.from_bytes(checksum, "big") else None


def _fill(peer: socket.socket, view: memoryview) -> None:
    while view:
        count = peer.recv_into(view)
        if not count:
            raise TransferError("the other server has closed the connection")
        view = view[count:]
