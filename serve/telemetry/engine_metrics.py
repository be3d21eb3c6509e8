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

COUNTERS = (
    ("vllm:spec_decode_num_drafts", "num_drafts", "Rounds that verified draft tokens"),
    ("vllm:spec_decode_num_draft_tokens", "num_draft_tokens", "Draft tokens verified"),
    ("vllm:spec_decode_num_accepted_tokens", "num_accepted_tokens", "Draft tokens accepted"),
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


class EngineCollector(Collector):
    """The engine's counters and gauges as of its latest step."""

    def __init__(self, labels: Sequence[str], read: Callable[[], EngineStats]) -> None:
        self._labels = labels
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Yield all families from one snapshot."""
        stats = self._read()
        for name, field, text in COUNTERS:
            yield self._counter(name, text, getattr(stats, field))
        for name, field, text in GAUGES:
            yield self._gauge(name, text, getattr(stats, field))
        yield self._waiting(stats)
        yield self._sleep_state()
        yield from self._sources(stats)
        if stats.tiers:
            yield from self._tiers(stats)
        if stats.encoder_cache_capacity:
            yield from self._images(stats)
        for name, field, text in PER_POSITION:
            counts = {f"{position}": n for position, n in enumerate(getattr(stats, field))}
            yield self._labelled(name, text, "position", counts)
        name, text = "eagle3:spec_decode_rounds", "Rounds of a sequence by draft tokens made"
        counts = {f"{drafted}": n for drafted, n in enumerate(stats.rounds_by_drafted)}
        yield self._labelled(name, text, "drafted", counts)
        reasons = {reason: getattr(stats, field) for reason, field in SKIPPED.items()}
        name, text = "eagle3:spec_decode_num_skipped_tokens", "Draft tokens that did not count"
        yield self._labelled(name, text, "reason", reasons)
        yield self._accept_lengths(stats)
        if stats.synthetic_acceptance_length is not None:
            name, text = "eagle3:synthetic_acceptance_length", "Answers here are not the model's"
            yield self._gauge(name, text, stats.synthetic_acceptance_length)

    def _waiting(self, stats: EngineStats) -> Metric:
        """Return the number of waiting requests, by reason."""
        name, text = "vllm:num_requests_waiting_by_reason", "Requests waiting, by reason"
        capacity = stats.num_waiting - stats.num_deferred
        reasons = {"capacity": capacity, "deferred": stats.num_deferred}
        return self._labelled_gauge(name, text, "reason", reasons)

    def _sleep_state(self) -> Metric:
        name, text = "vllm:engine_sleep_state", "1 for the state that the engine is in"
        return self._labelled_gauge(name, text, "sleep_state", SLEEP_STATES)

    def _sources(self, stats: EngineStats) -> Iterable[Metric]:
        """Yield the sources of prompt tokens."""
        found = stats.cached
        sources = {"local_compute": stats.computed_prompt_tokens}
        sources |= {"local_cache_hit": found.device, "external_kv_transfer": found.below}
        name, text = "vllm:prompt_tokens_by_source", "Prompt tokens looked up, by where they were"
        yield self._labelled(name, text, "source", sources)
        tiers = {VLLMS_TIERS[tier]: tokens for tier, tokens in found._asdict().items()}
        name, text = "vllm:prompt_tokens_cached_by_source", "Prompt tokens found, by tier"
        yield self._labelled(name, text, "source", tiers)

    def _tiers(self, stats: EngineStats) -> Iterable[Metric]:
        """Yield tokens found below the devices, and the usage of each tier there."""
        for name, field, text in BELOW:
            yield self._counter(name, text, getattr(stats, field))
        name, text = "eagle3:prompt_tokens_cached_by_tier", "Prompt tokens found, by tier"
        yield self._labelled(name, text, "tier", stats.cached._asdict())
        name, text = "eagle3:kv_tier_usage_perc", "Share of a tier's pages in use, 1 = all"
        shares = {room.tier: room.pages / room.total for room in stats.tiers}
        yield self._labelled_gauge(name, text, "tier", shares)
        for name, field, text in FAILURES:
            yield self._counter(name, text, getattr(stats, field))
        name, text = "eagle3:kv_foreign_files", "Files in --kv-offloading-dir that are no pages"
        yield self._gauge(name, text, stats.foreign_files)

    def _images(self, stats: EngineStats) -> Iterable[Metric]:
        for name, field, text in IMAGES:
            yield self._counter(name, text, getattr(stats, field))
        used = stats.encoder_cache_tokens / stats.encoder_cache_capacity
        name, text = (
            "eagle3:encoder_cache_usage_perc",
            "Share of the features' rows in use, 1 = all",
        )
        yield self._gauge(name, text, used)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=LABELS)
        gauge.add_metric(self._labels, value)
        return gauge

    def _labelled_gauge(
        self, name: str, text: str, label: str, values: Mapping[str, float]
    ) -> Metric:
        gauge = GaugeMetricFamily(name, text, labels=(*LABELS, label))
        for key, value in values.items():
            gauge.add_metric((*self._labels, key), value)
        return gauge

    def _counter(self, name: str, text: str, value: float) -> Metric:
        counter = CounterMetricFamily(name, text, labels=LABELS)
        counter.add_metric(self._labels, value)
        return counter

    def _labelled(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        counter = CounterMetricFamily(name, text, labels=(*LABELS, label))
        for key, value in values.items():
            counter.add_metric((*self._labels, key), value)
        return counter

    def _accept_lengths(self, stats: EngineStats) -> Metric:
        """Return tokens per draft, with the bonus token. Sum over count is the accept length."""
        name, text = "eagle3:spec_decode_accept_length", "Tokens that a draft committed"
        family = HistogramMetricFamily(name, text, labels=LABELS)
        cumulative = accumulate(stats.accepted_histogram)
        buckets = [(f"{accepted + 1.0}", n) for accepted, n in enumerate(cumulative)]
        total = stats.num_drafts + stats.num_accepted_tokens
        family.add_metric(self._labels, [*buckets, ("+Inf", stats.num_drafts)], total)
        return family
