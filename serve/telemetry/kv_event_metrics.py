"""Metrics of published KV events."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from serve.telemetry.engine_metrics import LABELS

COUNTERS = (
    ("eagle3:kv_events_published", "published", "KV events sent to subscribers"),
    ("eagle3:kv_event_batches_dropped", "dropped", "Batches of KV events lost to a full queue"),
)


class KVEventCounts(Protocol):
    """The counters of a publisher."""

    @property
    def published(self) -> int: ...
    @property
    def dropped(self) -> int: ...


class KVEventCollector(Collector):
    """A publisher's counters at the time of a scrape."""

    def __init__(self, labels: Sequence[str], counts: KVEventCounts) -> None:
        self._labels = labels
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        for name, field, text in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric(self._labels, getattr(self._counts, field))
            yield counter
