"""Peers that lie, change bytes on their way, repeat an old connection or have another key: no page
is stored under a key that it was not made for, and no stranger reads or releases pages."""

import json
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from page_ends import (
    KEYS,
    PAGES,
    SIZE,
    Store,
    begun,
    ended,
    eventually,
    listening,
    producing,
    pulled,
)

from serve.kv_transfer.consumer import Puller, RemotePages
from serve.kv_transfer.wire import LENGTH_BYTES, MAC_BYTES, Connection, RefusedError

KEY, HEAD = b"k" * 32, LENGTH_BYTES + MAC_BYTES
HELLO = b"eagle3-kv 2 " + b"0" * 32 + b"\n"
OTHER_KEYS = [number.to_bytes(32, "big") for number in range(100, 100 + PAGES)]
Frames = list[bytes]


def stating(keys: list[bytes]) -> Callable[[socket.socket], object]:
    """A producer with the right key that states these keys for pages full of 200."""

    def serve(peer: socket.socket) -> None:
        met = Connection(peer, "producer", KEY, lambda: 0.0, 60.0)
        met.greet()
        asked = met.receive_json()
        met.send_json({"page_bytes": SIZE})
        for index in asked["pages"]:
            met.send_json({"key": keys[index].hex()})
            met.send_page(np.full(SIZE, 200, np.uint8))

    return serve


@pytest.mark.parametrize("wrong", [0, 3])
def test_a_page_is_stored_only_under_the_key_that_its_producer_states(wrong: int) -> None:
    keys = [*KEYS[:wrong], *OTHER_KEYS[wrong:]]
    store = Store()
    with listening(stating(keys)) as port:
        assert pulled(store, port, shared_key=KEY) == {slot: slot < wrong for slot in range(PAGES)}
    assert store.filled.keys() == set(range(wrong))


def test_a_name_gives_nothing_to_who_does_not_know_its_prompt() -> None:
    """Neither pages nor, with none asked for, their release."""
    with producing(shared_key=KEY) as server:
        puller = Puller(Store(), "f", shared_key=KEY)
        source = begun(puller, server.address[1], keys=OTHER_KEYS)
        assert not any(ended(source).values()) and puller.counts.failed == PAGES
        RemotePages(source.prompt, puller).finish()
        assert all(pulled(Store(), server.address[1], shared_key=KEY).values())
        eventually(lambda: server.acknowledged == 1)


@pytest.mark.parametrize("theirs", [b"", b"z" * 32])
def test_peers_with_another_key_or_none_are_told_so(
    theirs: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    with producing(shared_key=KEY) as server:
        assert not any(pulled(store, server.address[1], shared_key=theirs).values())
        assert (server.num_kept, server.bytes_sent, store.filled) == (1, 0, {})
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 2 and all("--kv-transfer-key-file" in line for line in told)


def received(peer: socket.socket, count: int) -> bytes:
    """So many bytes, or fewer where the connection ends."""
    data = bytearray()
    with suppress(ConnectionResetError):
        while len(data) < count and (piece := peer.recv(count - len(data))):
            data += piece
    return bytes(data)


def message(peer: socket.socket) -> bytes:
    """One message behind the hellos."""
    head = received(peer, HEAD)
    return head + received(peer, int.from_bytes(head[:LENGTH_BYTES], "big"))


def between(port: int, change: Callable[[Frames], Frames]) -> Callable[[socket.socket], object]:
    """A peer in the middle, which changes the messages that the producer at this port sends."""

    def serve(consumer: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", port)) as producer:
            producer.sendall(received(consumer, len(HELLO)))
            consumer.sendall(received(producer, len(HELLO)))
            producer.sendall(message(consumer))
            answers = [message(producer) for _ in range(1 + 2 * PAGES)]
            consumer.sendall(b"".join(change(answers)))
            consumer.shutdown(socket.SHUT_WR)
            received(consumer, 1000)

    return serve


def flipped(frames: Frames) -> Frames:
    frames[6] = frames[6][:-1] + bytes([frames[6][-1] ^ 1])
    return frames


CHANGES: dict[str, Callable[[Frames], Frames]] = {
    "a bit of a page": flipped,
    "two pages swapped": lambda f: [*f[:6], f[8], f[7], f[6], *f[9:]],
    "pages with their keys swapped": lambda f: [*f[:5], *f[7:9], *f[5:7], *f[9:]],
    "a page twice": lambda f: [*f[:5], *f[3:5], *f[7:]],
    "a page left out": lambda f: [*f[:5], *f[7:]],
    "the end cut": lambda f: f[:5],
    "a page from the producer's first message": lambda f: [*f[:5], f[0], *f[5:]],
}
"""The third page's messages are 5 and 6."""


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_on_its_way_is_not_stored(name: str) -> None:
    store = Store()
    with producing(shared_key=KEY) as server:
        with listening(between(server.address[1], CHANGES[name])) as port:
            found = pulled(store, port, shared_key=KEY)
    assert found == {slot: slot < 2 for slot in range(PAGES)}
    assert store.filled.keys() == {0, 1} and store.has_right_pages()


def test_a_recorded_connection_is_worth_nothing() -> None:
    """Neither a consumer's to a producer nor a producer's to a consumer."""
    asked: Frames = []
    sent: Frames = []

    def spy(consumer: socket.socket) -> None:
        consumer.sendall(HELLO)
        asked.extend([received(consumer, len(HELLO)), message(consumer)])

    def record(frames: Frames) -> Frames:
        sent.extend(frames)
        return frames

    def repeat(consumer: socket.socket) -> None:
        consumer.sendall(HELLO + b"".join(sent[:5]))
        received(consumer, 1000)

    with producing(shared_key=KEY) as server:
        with listening(spy) as port:
            assert not any(pulled(Store(), port, shared_key=KEY).values())
        with socket.create_connection(("127.0.0.1", server.address[1])) as peer:
            peer.sendall(b"".join(asked))
            assert received(peer, len(HELLO)) and b"--kv-transfer-key-file" in message(peer)
        assert (server.bytes_sent, server.num_kept) == (0, 1)
        with listening(between(server.address[1], record)) as port:
            assert all(pulled(Store(), port, shared_key=KEY).values())
    with listening(repeat) as port:
        assert not any(pulled(store := Store(), port, shared_key=KEY).values())
    assert not store.filled


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (HELLO.replace(b"2", b"3"), "speaks version '3' of the page protocol, this one '2'"),
        (b'{"transfer": "a", "fingerprint": "f"}\n', "does not speak the page protocol"),
        (b"GET / HTTP/1.1\r\n\r\n", "does not speak the page protocol"),
        (b"eagle3-kv 2 0\n", "does not speak the page protocol"),
        (bytes(100), "does not speak the page protocol"),
    ],
)
def test_other_versions_and_protocols_are_one_line_at_each_end(
    line: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with producing() as server:
        with socket.create_connection(("127.0.0.1", server.address[1])) as peer:
            peer.sendall(line)
            received(peer, 1000)
        assert (server.num_kept, server.bytes_sent) == (1, 0)
    with listening(lambda peer: (peer.sendall(line), received(peer, 1000))) as port:
        assert not any(pulled(Store(), port).values())
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 2 and all(said in one for one in told), told


def asking(pages: object, last_key: str = KEYS[-1].hex()) -> bytes:
    """The request for these pages of the prompt that is kept."""
    asked = {"transfer": "a", "fingerprint": "f", "last_key": last_key, "pages": pages}
    return json.dumps(asked).encode()


@pytest.mark.parametrize(
    "body",
    [
        *(b"[" * 2**20, b"[]", b'"a"', b"\xff", b"1" * 10**6, b'{"transfer": {}, "pages": 1e999}'),
        *map(asking, ([PAGES], [-1], [0, 99], [True], ["0"], None)),
        asking([], "00"),
    ],
)
def test_a_request_that_is_none_is_refused(body: bytes) -> None:
    with producing() as server:
        with socket.create_connection(("127.0.0.1", server.address[1])) as peer:
            met = Connection(peer, "consumer", b"", lambda: 0.0, 60.0)
            met.greet()
            met._send(met._head(body) + body)
            with pytest.raises(RefusedError):
                met.receive_json()
        assert (server.num_kept, server.bytes_sent) == (1, 0)
        assert all(pulled(Store(), server.address[1]).values())
