"""Metrics of pages transferred between servers."""

from collections.abc import Iterable, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve.kv_transfer.transfers import Transfers
from serve.telemetry.engine_metrics import LABELS

PRODUCED = (
    ("eagle3:kv_transfer_bytes_sent", "bytes_sent", "Bytes of pages sent to other servers"),
    ("eagle3:kv_transfers_acknowledged", "acknowledged", "Prompts fetched by other servers"),
    ("eagle3:kv_transfers_expired", "expired", "Prompts that no server fetched in time"),
)
CONSUMED = (
    ("eagle3:kv_transfer_bytes_received", "bytes", "Bytes of pages of other servers"),
    ("eagle3:kv_transfer_pages_failed", "failed", "Pages that did not come, or came wrong"),
)


class KVTransferCollector(Collector):
    """The counters of a server as producer, consumer or both, at the time of a scrape."""

    def __init__(self, labels: Sequence[str], transfers: Transfers) -> None:
        self._labels, self._transfers = labels, transfers

    def collect(self) -> Iterable[Metric]:
        server, puller = self._transfers.server, self._transfers.puller
        ends = ((server, PRODUCED), (puller and puller.counts, CONSUMED))
        for counts, rows in ends:
            for name, field, text in rows if counts is not None else ():
                counter = CounterMetricFamily(name, text, labels=LABELS)
                counter.add_metric(self._labels, getattr(counts, field))
                yield counter
        if server is not None:
            text = "Prompts kept for other servers"
            gauge = GaugeMetricFamily("eagle3:kv_transfers_kept", text, labels=LABELS)
            gauge.add_metric(self._labels, server.num_kept)
            yield gauge
