"""Messages that no process of ours would send."""

import json
import random
from collections.abc import Iterator
from typing import Any

import zmq

from serve.hosts.messages import Kind

DEEP = b"[" * 100_000
TEXTS = [
    b'{"process": Infinity, "facts": {}}',
    b'{"process": 1e999, "facts": {}}',
    b'{"process": 1, "facts": [[1, 2]]}',
    b'{"process": 1, "facts": {"jax": 1}}',
    b'{"process": true, "facts": {}}',
    b'{"process": "1", "facts": {}}',
    b'{"process": 1.0, "facts": {}}',
    b'{"process": 1, "facts": {"\\ud800": ""}}',
    b'{"process": 1, "facts": {"jax": "\\udfff"}}',
    b'{"process": 1, "facts": {}, "more": 1}',
    b'{"process": ' + b"9" * 5000 + b', "facts": {}}',
    b'{"process": 1, "facts": ' + DEEP,
    b"\xff\xfe",
    b"null",
    b"",
]
PARTS = [float("inf"), float("nan"), -1, 10**30, None, True, "1", "", [], [[1, 2]], {}, {"": None}]


def hellos(rng: random.Random) -> Iterator[bytes]:
    """Yield the hard texts above, then random objects; none is a process's."""
    yield from TEXTS
    while True:
        names = rng.choices(["process", "facts", "", "peer"], k=rng.randrange(4))
        found: dict[str, Any] = {name: rng.choice(PARTS) for name in names}
        if type(found.get("process")) is not int or "" in found:
            yield json.dumps(found).encode()


def malformed(count: int) -> Iterator[list[bytes]]:
    """Random frames, and HELLOs with words that no process says."""
    rng = random.Random(count)
    words = hellos(rng)
    for number in range(count):
        if number % 2:
            yield [rng.randbytes(rng.randrange(9)) for _ in range(rng.randrange(1, 5))]
        else:
            yield [bytes([Kind.HELLO]), next(words)]


def send_malformed(dealer: zmq.Socket[bytes], address: str, count: int) -> None:
    """Send so many messages from a peer that may connect."""
    dealer.setsockopt(zmq.SNDTIMEO, 60_000)
    dealer.connect(f"tcp://{address}")
    for frames in malformed(count):
        dealer.send_multipart(frames)
