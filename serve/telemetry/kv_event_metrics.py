"""How many KV events went out, where they are published."""

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
    """What a publisher counts."""

    @property
    def published(self) -> int: ...
    @property
    def dropped(self) -> int: ...


class KVEventCollector(Collector):
    """A publisher's counts, as they are at a scrape."""

    def __init__(self, labels: Sequence[str], counts: KVEventCounts) -> None:
        self._labels = labels
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Both families."""
        for name, field, text in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric(self._labels, getattr(self._counts, field))
            yield counter
