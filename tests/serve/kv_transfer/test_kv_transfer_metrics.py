"""/metrics counts what moved between servers, at both ends."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_killed_ends import KEYS, PAGES, SIZE, SLOTS, Store, eventually

from eagle3_jax.engine.kv.tiers.exports import Export
from serve.kv_transfer.consumer import Puller, RemotePrompt
from serve.kv_transfer.producer import PageServer
from serve.telemetry.exposition import render
from serve.telemetry.metrics import Metrics

SENT = "eagle3:kv_transfer_bytes_sent_total"
ACKNOWLEDGED = "eagle3:kv_transfers_acknowledged_total"
EXPIRED = "eagle3:kv_transfers_expired_total"
KEPT = "eagle3:kv_transfers_kept"
RECEIVED = "eagle3:kv_transfer_bytes_received_total"
FAILED = "eagle3:kv_transfer_pages_failed_total"


def scraped(**ends: Any) -> dict[str, float]:
    """The transfers' samples of a server with these ends, read by Prometheus' parser."""
    metrics, transfers = Metrics("m"), SimpleNamespace(**{"server": None, "puller": None} | ends)
    metrics.watch_kv_transfers(transfers)  # type: ignore[arg-type]
    families = text_string_to_metric_families(render(metrics.registry))
    samples = [sample for family in families for sample in family.samples]
    return {s.name: s.value for s in samples if "kv_transfer" in s.name}


def pull(puller: Puller, port: int, name: str) -> None:
    """To the end of every page."""
    source = puller.source(RemotePrompt("127.0.0.1", port, name, PAGES, KEYS[-1]))
    assert source.match(KEYS) == PAGES
    source.load(SLOTS)
    ended: list[tuple[int, bool]] = []
    eventually(lambda: ended.extend(source.done()) or len(ended) >= PAGES)


def test_both_ends_count_bytes_prompts_and_pages() -> None:
    """One prompt fetched, one that nobody fetches, one that is gone, one that is kept."""
    server = PageServer(("127.0.0.1", 0), Store(), "f", 0.1, lambda name: None)
    puller, port = Puller(Store(), "f"), server.address[1]
    for name in ("fetched", "late", "kept"):
        server.announce(name)
        server.offer(Export(name, SLOTS))
    pull(puller, port, "fetched")
    eventually(lambda: server.acknowledged == 1)
    server.start_clock("late")
    eventually(lambda: server.expired == 1)
    pull(puller, port, "late")
    produced = {SENT: PAGES * SIZE, ACKNOWLEDGED: 1, EXPIRED: 1, KEPT: 1}
    consumed = {RECEIVED: PAGES * SIZE, FAILED: PAGES}
    assert scraped(server=server, puller=puller) == produced | consumed
    server.close()


@pytest.mark.parametrize(
    ("ends", "names"),
    [({"server"}, {SENT, ACKNOWLEDGED, EXPIRED, KEPT}), ({"puller"}, {RECEIVED, FAILED})],
    ids=["producer", "consumer"],
)
def test_a_server_has_the_metrics_of_its_own_role(ends: set[str], names: set[str]) -> None:
    server = PageServer(("127.0.0.1", 0), Store(), "f", 60.0, lambda name: None)
    both = {"server": server, "puller": Puller(Store(), "f")}
    found = scraped(**{name: both[name] for name in ends})
    server.close()
    assert found == dict.fromkeys(names, 0)
