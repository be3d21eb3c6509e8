"""A producer's pages go out under the name that holds them, or not at all."""

import os
import resource
import socket
import time
from contextlib import suppress

import numpy as np
import pytest
from test_killed_ends import PAGES, SIZE, SLOTS, Store, pulled

from eagle3_jax.engine.kv.tiers.exports import Export
from serve.kv_transfer.producer import PageServer, _chosen

LOST = 5
"""The page that is read when its name ends."""
FOREIGN = 200


class ReusedStore(Store):
    """Once page LOST is to be read its name ends, and somebody else's page is in its slot."""

    server: PageServer
    ends_by: str

    def bytes_of(self, slot: int) -> np.ndarray:
        if slot != LOST:
            return super().bytes_of(slot)
        if self.ends_by == "acknowledgement":
            self.server.forget("a", acknowledged=True)
        elif self.ends_by == "expiry":
            self.server._deadlines["a"] = 0.0
            self.server._expire()
        else:
            self.server.offer(Export("a", []))
        return np.full(SIZE, FOREIGN, np.uint8)


@pytest.mark.parametrize("ends_by", ["acknowledgement", "expiry", "its pages were spoiled"])
def test_a_page_whose_name_ended_while_it_was_read_is_not_sent(ends_by: str) -> None:
    """Its checksum would be right: nobody else could tell that it is another's."""
    store, taker = ReusedStore(), Store()
    server = store.server = PageServer(("127.0.0.1", 0), store, "f", 60.0, lambda name: None)
    store.ends_by = ends_by
    server.announce("a")
    server.offer(Export("a", SLOTS))
    ended = pulled(taker, server.address[1])
    assert ended == {slot: slot < LOST for slot in range(PAGES)}
    assert all((page == slot).all() for slot, page in taker.filled.items())
    server.close()


@pytest.mark.parametrize("wanted", [[PAGES], [-1], [0, 99], [True], ["0"], None])
def test_pages_are_asked_for_by_numbers_that_there_are(wanted: object) -> None:
    asked = {"last_key": SLOTS[-1].key.hex(), "pages": wanted}
    assert _chosen(SLOTS, asked) is None
    assert _chosen(SLOTS, {"last_key": "00", "pages": []}) is None, "it does not know the prompt"
    assert _chosen(SLOTS, asked | {"pages": [2, 0, PAGES - 1]}) == [SLOTS[2], SLOTS[0], SLOTS[-1]]


def test_a_process_without_descriptors_goes_on_accepting_and_expiring(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Names expire meanwhile, and a consumer is served afterwards; one line is logged."""
    released: list[str] = []
    server = PageServer(("127.0.0.1", 0), Store(), "f", 0.1, released.append)
    for name in ("a", "late"):
        server.announce(name)
        server.offer(Export(name, SLOTS))
    taken, (soft, hard) = [], resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 20, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(waiting.fileno()))
        waiting.connect(server.address)
        server.start_clock("late")
        time.sleep(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)
    assert released == ["late"]
    assert all(pulled(Store(), server.address[1]).values())
    assert caplog.text.count("the page port can't take a connection now") == 1
    waiting.close()
    server.close()
