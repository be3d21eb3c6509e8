"""A producer's pages go out under the name that holds them or not at all; both ends count them."""

import os
import resource
import socket
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from page_ends import KEYS, PAGES, SIZE, SLOTS, Store, begun, ended, eventually, producing, pulled
from prometheus_client.parser import text_string_to_metric_families

from eagle3_jax.engine.kv.transfers import PromptPages
from serve.kv_transfer.consumer import Puller, RemotePages, RemotePrompt
from serve.kv_transfer.producer import PageServer
from serve.telemetry.metrics import Metrics, render

LOST, FOREIGN = 5, 200
"""The page that is read when its name ends, and what its slot holds then."""


class ReusedStore(Store):
    """Once page LOST is to be read its name ends, and another prompt's page is in its slot."""

    server: PageServer

    def __init__(self, ends_by: str) -> None:
        super().__init__()
        self._ends_by = ends_by

    def bytes_of(self, slot: int) -> np.ndarray:
        if slot != LOST:
            return super().bytes_of(slot)
        if self._ends_by == "acknowledgement":
            self.server.release("a", acknowledged=True)
        elif self._ends_by == "expiry":
            self.server._deadlines["a"] = 0.0
            self.server._expire()
        else:
            self.server.offer(PromptPages("a", []))
        return np.full(SIZE, FOREIGN, np.uint8)


@pytest.mark.parametrize("ends_by", ["acknowledgement", "expiry", "its pages were spoiled"])
def test_a_page_whose_name_ended_while_it_was_read_is_not_sent(ends_by: str) -> None:
    """Its checksum would be right: the consumer could not tell that it is another prompt's."""
    store, taker = ReusedStore(ends_by), Store()
    with producing(store=store) as store.server:
        found = pulled(taker, store.server.address[1])
    assert found == {slot: slot < LOST for slot in range(PAGES)}
    assert taker.has_right_pages()


def test_some_pages_are_asked_for_in_any_order() -> None:
    store = Store()
    with producing() as server:
        prompt = RemotePrompt("127.0.0.1", server.address[1], "a", PAGES, KEYS[-1])
        source = RemotePages(prompt, Puller(store, "f"))
        assert source.match(KEYS) == PAGES
        source.load([SLOTS[2], SLOTS[0], SLOTS[-1]])
        eventually(lambda: len(store.filled) == 3)
    assert store.filled.keys() == {0, 2, PAGES - 1} and store.has_right_pages()


def test_a_process_without_descriptors_goes_on_accepting_and_expiring(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Names expire meanwhile, and a consumer is served afterwards; one line is logged."""
    released, taken = list[str](), list[int]()
    with (
        producing("a", "late", expiry_s=0.1, release=released.append) as server,
        socket.socket() as waiting,
    ):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 20, hard))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.dup(waiting.fileno()))
            waiting.connect(server.address)
            server.start_expiry("late")
            time.sleep(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
        assert released == ["late"]
        assert all(pulled(Store(), server.address[1]).values())
    assert caplog.text.count("can't accept connections for pages now") == 1


PRODUCED = ("eagle3:kv_transfer_bytes_sent_total", "eagle3:kv_transfers_acknowledged_total")
PRODUCED += ("eagle3:kv_transfers_expired_total", "eagle3:kv_transfers_kept")
CONSUMED = ("eagle3:kv_transfer_bytes_received_total", "eagle3:kv_transfer_pages_failed_total")


def scraped(**ends: Any) -> dict[str, float]:
    """The transfers' samples of a server with these ends, read by Prometheus' parser."""
    metrics, transfers = Metrics("m"), SimpleNamespace(**{"server": None, "puller": None} | ends)
    metrics.watch_kv_transfers(transfers)  # type: ignore[arg-type]
    families = text_string_to_metric_families(render(metrics.registry))
    samples = [sample for family in families for sample in family.samples]
    return {s.name: s.value for s in samples if "kv_transfer" in s.name}


def test_both_ends_count_bytes_prompts_and_pages() -> None:
    """One prompt fetched, one that nobody fetches, one that is gone, one that is kept."""
    with producing("fetched", "late", "kept", expiry_s=0.1) as server:
        puller, port = Puller(Store(), "f"), server.address[1]
        assert scraped(server=server) == dict(zip(PRODUCED, (0, 0, 0, 3), strict=True))
        assert scraped(puller=puller) == dict.fromkeys(CONSUMED, 0)
        ended(begun(puller, port, "fetched"))
        eventually(lambda: server.acknowledged == 1)
        server.start_expiry("late")
        eventually(lambda: server.expired == 1)
        ended(begun(puller, port, "late"))
        counts = (PAGES * SIZE, 1, 1, 1, PAGES * SIZE, PAGES)
        expected = dict(zip(PRODUCED + CONSUMED, counts, strict=True))
        assert scraped(server=server, puller=puller) == expected
