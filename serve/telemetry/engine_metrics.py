"""An engine's statistics as Prometheus metrics: under vLLM's names if it has one, else `eagle3:`.

docs/metrics.md describes each.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from eagle3_jax.engine import EngineStats

LABELS = ("model_name", "engine")
MetricRows = tuple[tuple[str, str, str], ...]
"""Metrics that are fields of an object: name, field and description."""
Values = float | Mapping[str, float]

COUNTERS: MetricRows = (
    ("vllm:spec_decode_num_drafts", "num_drafts", "Rounds that verified draft tokens"),
    ("vllm:spec_decode_num_draft_tokens", "num_draft_tokens", "Draft tokens verified"),
    ("vllm:spec_decode_num_accepted_tokens", "num_accepted_tokens", "Draft tokens accepted"),
    ("eagle3:spec_decode_num_lookup_drafts", "num_lookup_drafts", "Rounds of looked-up drafts"),
    (
        "eagle3:spec_decode_num_lookup_draft_tokens",
        "num_lookup_draft_tokens",
        "Draft tokens verified that were looked up, not made by the draft model",
    ),
    (
        "eagle3:spec_decode_num_accepted_lookup_tokens",
        "num_accepted_lookup_tokens",
        "Of these, accepted",
    ),
    ("eagle3:spec_decode_num_kept_tokens", "num_kept_tokens", "Tokens that drafts gave to answers"),
    ("vllm:prompt_tokens", "prompt_tokens", "Prompt tokens processed"),
    ("vllm:prompt_tokens_cached", "prefix_cache_hits", "Prompt tokens that were not run again"),
    ("vllm:generation_tokens", "generation_tokens", "Tokens generated"),
    ("vllm:num_preemptions", "num_preemptions", "Preemptions"),
    ("vllm:prefix_cache_queries", "prefix_cache_queries", "Prompt tokens looked up"),
    ("vllm:prefix_cache_hits", "prefix_cache_hits", "Prompt tokens found in the prefix cache"),
    ("vllm:mm_cache_queries", "encoder_cache_queries", "Images that prefills came to"),
    ("vllm:mm_cache_hits", "encoder_cache_hits", "Of these, those whose features were kept"),
)
BELOW = (
    (
        "vllm:external_prefix_cache_queries",
        "prefix_cache_missed",
        "Prompt tokens that the devices did not have",
    ),
    (
        "vllm:external_prefix_cache_hits",
        "prefix_cache_loaded",
        "Of these, found in memory below the GPUs'",
    ),
)
"""Metrics of an engine with a memory tier below the devices."""
FAILURES = (
    ("eagle3:kv_damaged_pages", "damaged_pages", "Files that were not the pages of their names"),
    ("eagle3:kv_failed_fetches", "failed_fetches", "Pages that could not be brought from below"),
)
"""Each failure costs a prefill."""
IMAGES = (
    ("eagle3:encoder_cache_queries", "encoder_cache_queries", "Images that prefills came to"),
    ("eagle3:encoder_cache_hits", "encoder_cache_hits", "Of these, those whose features were kept"),
    ("eagle3:images_encoded", "images_encoded", "Images encoded"),
)
"""Metrics of an engine with a vision model."""
IMAGES_USAGE = "Share of the features' rows in use, 1 = all"
PER_POSITION = (
    (
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "num_accepted_per_pos",
        "Accepted tokens by position",
    ),
    (
        "eagle3:spec_decode_num_tried_tokens_per_pos",
        "num_tried_per_pos",
        "Verified tokens by position whose predecessors were all accepted",
    ),
)
VLLMS_TIERS = {"device": "device", "host": "host", "disk": "disk", "remote": "p2p"}
"""vLLM's names for the fields of `TokensByTier`."""
SLEEP_STATES = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
"""This engine never sleeps, but dashboards read a missing `awake` as sleep."""
SKIPPED = {"request": "skipped_by_request", "room": "skipped_for_room"}
SKIPPED |= {"finished": "skipped_finished"}
GAUGES = (
    ("vllm:num_requests_running", "num_running", "Requests in a slot"),
    ("vllm:num_requests_waiting", "num_waiting", "Requests waiting for a slot or pages"),
    ("vllm:kv_cache_usage_perc", "kv_cache_usage", "Share of the pages in use, 1 = all"),
    ("vllm:gpu_cache_usage_perc", "kv_cache_usage", "The same under its older name"),
)


class LabelledCollector(Collector):
    """Base of collectors that read counts at every scrape. All metrics have `labels`."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels

    def _counter(self, name: str, text: str, values: Values, *label: str) -> Metric:
        """Return a counter, or one for each value of a further label."""
        return self._filled(CounterMetricFamily(name, text, labels=(*LABELS, *label)), values)

    def _gauge(self, name: str, text: str, values: Values, *label: str) -> Metric:
        """Return a gauge, or one for each value of a further label."""
        return self._filled(GaugeMetricFamily(name, text, labels=(*LABELS, *label)), values)

    def _counters(self, rows: MetricRows, source: object) -> Iterable[Metric]:
        return (self._counter(name, text, getattr(source, field)) for name, field, text in rows)

    def _gauges(self, rows: MetricRows, source: object) -> Iterable[Metric]:
        return (self._gauge(name, text, getattr(source, field)) for name, field, text in rows)

    def _filled(self, family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
        if isinstance(values, Mapping):
            for key, value in values.items():
                family.add_metric((*self._labels, key), value)
        else:
            family.add_metric(self._labels, values)
        return family


class CountsCollector(LabelledCollector):
    """Fields of an object as counters and gauges."""

    def __init__(
        self, labels: Sequence[str], source: object, counters: MetricRows, gauges: MetricRows = ()
    ) -> None:
        super().__init__(labels)
        self._source, self._rows = source, (counters, gauges)

    def collect(self) -> Iterable[Metric]:
        counters, gauges = self._rows
        yield from self._counters(counters, self._source)
        yield from self._gauges(gauges, self._source)


class EngineCollector(LabelledCollector):
    """The engine's counters and gauges as of its latest step."""

    def __init__(self, labels: Sequence[str], read: Callable[[], EngineStats]) -> None:
        super().__init__(labels)
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Yield all families from one snapshot."""
        stats = self._read()
        yield from self._counters(COUNTERS, stats)
        yield from self._gauges(GAUGES, stats)
        capacity = stats.num_waiting - stats.num_deferred
        reasons = {"capacity": capacity, "deferred": stats.num_deferred}
        name, text = "vllm:num_requests_waiting_by_reason", "Requests waiting, by reason"
        yield self._gauge(name, text, reasons, "reason")
        name, text = "vllm:engine_sleep_state", "1 for the state that the engine is in"
        yield self._gauge(name, text, SLEEP_STATES, "sleep_state")
        yield from self._sources(stats)
        if stats.tiers:
            yield from self._tiers(stats)
        if stats.encoder_cache_capacity:
            yield from self._counters(IMAGES, stats)
            used = stats.encoder_cache_tokens / stats.encoder_cache_capacity
            name, text = "eagle3:encoder_cache_usage_perc", IMAGES_USAGE
            yield self._gauge(name, text, used)
        yield from self._drafts(stats)
        if stats.synthetic_acceptance_length is not None:
            name, text = "eagle3:synthetic_acceptance_length", "Answers here are not the model's"
            yield self._gauge(name, text, stats.synthetic_acceptance_length)

    def _sources(self, stats: EngineStats) -> Iterable[Metric]:
        found = stats.cached
        sources = {"local_compute": stats.computed_prompt_tokens}
        sources |= {"local_cache_hit": found.device, "external_kv_transfer": found.below}
        name, text = "vllm:prompt_tokens_by_source", "Prompt tokens looked up, by where they were"
        yield self._counter(name, text, sources, "source")
        tiers = {VLLMS_TIERS[tier]: tokens for tier, tokens in found._asdict().items()}
        name, text = "vllm:prompt_tokens_cached_by_source", "Prompt tokens found, by tier"
        yield self._counter(name, text, tiers, "source")

    def _tiers(self, stats: EngineStats) -> Iterable[Metric]:
        """Yield tokens found below the devices, and the usage of each tier there."""
        yield from self._counters(BELOW, stats)
        name, text = "eagle3:prompt_tokens_cached_by_tier", "Prompt tokens found, by tier"
        yield self._counter(name, text, stats.cached._asdict(), "tier")
        name, text = "eagle3:kv_tier_usage_perc", "Share of a tier's pages in use, 1 = all"
        yield self._gauge(name, text, {t.tier: t.pages / t.total for t in stats.tiers}, "tier")
        yield from self._counters(FAILURES, stats)
        name, text = "eagle3:kv_foreign_files", "Files in --kv-offloading-dir that are no pages"
        yield self._gauge(name, text, stats.foreign_files)

    def _drafts(self, stats: EngineStats) -> Iterable[Metric]:
        """Yield the counts of draft tokens, by position, number and reason."""
        for name, field, text in PER_POSITION:
            yield self._counter(name, text, _by_index(getattr(stats, field)), "position")
        name, text = "eagle3:spec_decode_rounds", "Rounds of a sequence by draft tokens made"
        yield self._counter(name, text, _by_index(stats.rounds_by_drafted), "drafted")
        reasons = {reason: getattr(stats, field) for reason, field in SKIPPED.items()}
        name, text = "eagle3:spec_decode_num_skipped_tokens", "Draft tokens that did not count"
        yield self._counter(name, text, reasons, "reason")
        yield self._accept_lengths(stats)

    def _accept_lengths(self, stats: EngineStats) -> Metric:
        """Return tokens per draft, with the bonus token. Sum over count is the accept length."""
        name, text = "eagle3:spec_decode_accept_length", "Tokens that a draft committed"
        family = HistogramMetricFamily(name, text, labels=LABELS)
        cumulative = accumulate(stats.accepted_histogram)
        buckets = [(f"{accepted + 1.0}", n) for accepted, n in enumerate(cumulative)]
        total = stats.num_drafts + stats.num_accepted_tokens
        family.add_metric(self._labels, [*buckets, ("+Inf", stats.num_drafts)], total)
        return family


def _by_index(counts: Iterable[int]) -> dict[str, int]:
    return {f"{index}": count for index, count in enumerate(counts)}
