"""Whichever end of a transfer is killed, at random points: the other loses no page and goes on."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3_jax.engine.kv.tiers.exports import Export
from eagle3_jax.engine.page_tiers import KeyedSlot
from serve.kv_transfer.consumer import Puller, RemotePages, RemotePrompt
from serve.kv_transfer.producer import PageServer

ROOT = Path(__file__).parents[3]
PAGES, SIZE = 24, 1 << 18
KEYS = [number.to_bytes(32, "big") for number in range(PAGES)]
SLOTS = [KeyedSlot(key, number) for number, key in enumerate(KEYS)]
BEGINNING = f"""
import socket, sys, time
import numpy as np
from serve.kv_transfer.wire import Connection
PAGES, SIZE, LAST = {PAGES}, {SIZE}, "{KEYS[-1].hex()}"
def met(peer, role):
    connection = Connection(peer, role, b"", time.monotonic, time.monotonic() + 60)
    connection.greet()
    return connection
"""
PRODUCER = """
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    peer, _ = server.accept()
    peer = met(peer, "producer")
    asked = peer.receive_json()
    peer.send_json({"page_bytes": SIZE})
    for index in asked["pages"]:
        peer.send_json({"key": index.to_bytes(32, "big").hex()})
        peer.send_page(np.full(SIZE, index, np.uint8))
    time.sleep(60)
"""
CONSUMER = """
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as peer:
    peer = met(peer, "consumer")
    asked = {"transfer": "a", "fingerprint": "f", "last_key": LAST, "pages": list(range(PAGES))}
    peer.send_json(asked)
    peer.receive_json()
    for number in range(PAGES):
        peer.receive_json()
        peer.receive_page(SIZE)
        print(number, flush=True)
    time.sleep(60)
"""


class Store:
    """Slots of an engine that takes pages, or hands out pages that are full of their number."""

    page_bytes, fingerprint = SIZE, b"f" * 32

    def __init__(self) -> None:
        self.filled: dict[int, np.ndarray] = {}

    def bytes_of(self, slot: int) -> np.ndarray:
        return np.full(SIZE, slot, np.uint8)

    def fill(self, slot: int, data: np.ndarray) -> None:
        self.filled[slot] = data


def started(script: str, *argv: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGINNING + script, *argv]
    path = {"PYTHONPATH": f"{ROOT}"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | path)


def said(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def pulled(
    store: Store, port: int, wait: Callable[[], object] = lambda: None, **options: Any
) -> dict[int, bool]:
    """How each page ended; `wait` is called while they come. options: of the puller."""
    prompt = RemotePrompt("127.0.0.1", port, "a", PAGES, KEYS[-1])
    puller = Puller(store, "f", **options)
    source = RemotePages(prompt, puller)
    assert source.match(KEYS) == PAGES
    source.load(SLOTS)
    wait()
    ended: list[tuple[int, bool]] = []
    eventually(lambda: ended.extend(source.done()) or len(ended) >= PAGES)
    assert sorted(slot for slot, _ in ended) == list(range(PAGES))
    assert puller.counts.failed == sum(not ok for _, ok in ended)
    return dict(ended)


@pytest.fixture
def points(request: pytest.FixtureRequest) -> list[tuple[int, float]]:
    """After how many pages the other end is killed, and how many seconds after that."""
    rng = random.Random(2)
    count = 50 if request.config.getoption("long") else 4
    return [(rng.randrange(PAGES), rng.uniform(0, 0.002)) for _ in range(count)]


def test_a_killed_producer_leaves_whole_pages_or_none(points: list[tuple[int, float]]) -> None:
    """Each page ends once: what came is the page, and a slot whose page did not is untouched."""
    for pages, seconds in points:
        store = Store()
        with started(PRODUCER) as producer:

            def kill(
                producer: subprocess.Popen[str] = producer,
                store: Store = store,
                pages: int = pages,
                seconds: float = seconds,
            ) -> None:
                eventually(lambda: len(store.filled) >= pages)
                time.sleep(seconds)
                os.kill(producer.pid, signal.SIGKILL)

            ended = pulled(store, said(producer), kill)
        assert {slot for slot, ok in ended.items() if ok} == store.filled.keys()
        assert all((page == slot).all() for slot, page in store.filled.items())


def test_a_killed_consumers_pages_go_when_their_time_has_passed(
    points: list[tuple[int, float]],
) -> None:
    """Each name is released once, and the next consumer is served."""
    released: list[str] = []
    server = PageServer(("127.0.0.1", 0), Store(), "f", 0.2, released.append)
    port = server.address[1]
    for round, (pages, seconds) in enumerate(points, 1):
        server.announce("a")
        server.offer(Export("a", SLOTS))
        with started(CONSUMER, f"{port}") as consumer:
            while said(consumer) < pages:
                pass
            server.start_clock("a")
            time.sleep(seconds)
            os.kill(consumer.pid, signal.SIGKILL)
        eventually(lambda: server.num_kept == 0)
        assert (server.expired, server.acknowledged, released) == (round, 0, ["a"] * round)
    server.announce("a")
    server.offer(Export("a", SLOTS))
    assert all(pulled(Store(), port).values())
    eventually(lambda: server.acknowledged == 1)
    server.close()
