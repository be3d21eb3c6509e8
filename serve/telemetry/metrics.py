"""Prometheus metrics of requests, under vLLM's names.

The engine's own statistics are added at every scrape. An inter-token latency is the gap between two
outputs of a request, each of which may have several tokens. Time per output token is divided by the
number of tokens.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from eagle3_jax.engine import EngineConfig, EngineStats, Request, RequestOutput
from serve.kv_transfer.transfers import Transfers
from serve.telemetry.engine_metrics import LABELS, EngineCollector
from serve.telemetry.http_metrics import TOKENS, HttpMetrics

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


GIB = 2**30


def cache_facts(config: EngineConfig, memory_share: float | None) -> dict[str, str]:
    """Return labels and their values. "None" is vLLM's word for an unset value.

    num_gpu_blocks excludes the scratch page; kv_offloading_size is in GiB.
    """
    pages = config.pool_pages - 1
    offloaded = config.kv_offloading_bytes
    facts = {
        "block_size": config.page_tokens,
        "num_gpu_blocks": pages,
        "kv_cache_size_tokens": pages * config.page_tokens,
        "cache_dtype": config.kv_cache_dtype,
        "enable_prefix_caching": config.enable_prefix_caching,
        "prefix_caching_hash_algo": "blake2b",
        "gpu_memory_utilization": memory_share,
        "kv_offloading_backend": "native" if offloaded else None,
        "kv_offloading_size": f"{offloaded / GIB:g}" if offloaded else None,
    }
    return {label: str(value) for label, value in facts.items()}


SHORT_S = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02)
SHORT_S += (0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
LONG_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
LONG_S += (10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
FINISH_REASONS = ("stop", "length", "abort", "error")

HISTOGRAMS = (
    ("time_to_first_token_seconds", "From arrival to the first token", LONG_S),
    ("inter_token_latency_seconds", "Between two outputs of a request", SHORT_S),
    ("time_per_output_token_seconds", "The same under its older name", SHORT_S),
    ("request_time_per_output_token_seconds", "Decode time over tokens after the first", SHORT_S),
    ("e2e_request_latency_seconds", "From arrival to the last token", LONG_S),
    ("request_queue_time_seconds", "From arrival to the first prefill", LONG_S),
    ("request_prefill_time_seconds", "From the first prefill to the first token", LONG_S),
    ("request_decode_time_seconds", "From the first token to the last", LONG_S),
    ("request_inference_time_seconds", "From the first prefill to the last token", LONG_S),
    ("request_prompt_tokens", "Prompt length", TOKENS),
    ("request_prefill_kv_computed_tokens", "Of these, those that had to be run", TOKENS),
    ("request_generation_tokens", "Tokens generated by a request", TOKENS),
    ("iteration_tokens_total", "Tokens that one engine step put out", TOKENS),
)


@dataclass
class _Passage:
    """Times and token counts of a request in flight."""

    arrival: float
    prompt_tokens: int
    cached_tokens: int = 0
    started: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    num_tokens: int = 0


class Metrics:
    """Observes requests and holds the registry that GET /metrics renders."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model_name, "0")
        self._passages: dict[str, _Passage] = {}
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", text, LABELS, buckets=buckets, registry=self.registry
            ).labels(*self._labels)
            for name, text, buckets in HISTOGRAMS
        }
        success = Counter(
            "vllm:request_success",
            "Requests finished, by reason",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._finished = {r: success.labels(*self._labels, r) for r in FINISH_REASONS}
        self.http = HttpMetrics(self.registry, self._labels)
        ProcessCollector(registry=self.registry)

    def watch(self, read: Callable[[], EngineStats]) -> None:
        """Add the statistics of an engine."""
        self.registry.register(EngineCollector(self._labels, read))

    def watch_kv_events(self, counts: KVEventCounts) -> None:
        """Add the counters of published KV events."""
        self.registry.register(KVEventCollector(self._labels, counts))

    def watch_kv_transfers(self, transfers: Transfers) -> None:
        """Add the counters of transfers between servers."""
        self.registry.register(KVTransferCollector(self._labels, transfers))

    def describe_cache(self, config: EngineConfig, memory_share: float | None = None) -> None:
        """Add the constant properties of the KV cache, as labels.

        `memory_share` is the fraction of each GPU's memory that sizes it; None if it has another
        size.
        """
        facts = cache_facts(config, memory_share)
        labels = dict(zip(LABELS, self._labels, strict=True)) | facts
        name, text = "vllm:cache_config_info", "The KV cache, as labels"
        Gauge(name, text, list(labels), registry=self.registry).labels(**labels).set(1)

    def on_submit(self, request: Request, now: float) -> None:
        """Record that a request was submitted to the engine."""
        self._passages[request.request_id] = _Passage(now, len(request.prompt_ids))

    def on_refused(self, request_id: str) -> None:
        """Record that the engine refused the request."""
        self._passages.pop(request_id, None)

    def on_aborted(self, request_id: str) -> None:
        """Record that the request was aborted before it finished."""
        if self._passages.pop(request_id, None):
            self._finished["abort"].inc()

    def on_started(self, request_ids: Sequence[str], now: float) -> None:
        """Record that the engine began to run these prompts at time `now`."""
        for request_id in request_ids:
            self._passages[request_id].started = now

    def on_outputs(self, outputs: Sequence[RequestOutput], now: float) -> None:
        """Record the outputs of one engine step at time `now`."""
        num_tokens = sum(len(output.token_ids) for output in outputs)
        if num_tokens:
            self._observe("iteration_tokens_total", num_tokens)
        for output in outputs:
            passage = self._passages[output.request_id]
            passage.cached_tokens = output.cached_tokens
            if output.token_ids:
                self._on_tokens(passage, len(output.token_ids), now)
            if output.finish_reason is not None:
                self._on_finish(self._passages.pop(output.request_id), output.finish_reason, now)

    def _on_tokens(self, passage: _Passage, count: int, now: float) -> None:
        if passage.num_tokens:
            for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
                self._observe(name, now - passage.last_token)
        else:
            passage.first_token = now
            self._observe("time_to_first_token_seconds", now - passage.arrival)
        passage.last_token = now
        passage.num_tokens += count

    def _on_finish(self, passage: _Passage, reason: str, now: float) -> None:
        self._finished[reason].inc()
        self._observe("e2e_request_latency_seconds", now - passage.arrival)
        self._observe("request_prompt_tokens", passage.prompt_tokens)
        computed = passage.prompt_tokens - passage.cached_tokens
        self._observe("request_prefill_kv_computed_tokens", computed)
        self._observe("request_generation_tokens", passage.num_tokens)
        if passage.num_tokens:
            decode = passage.last_token - passage.first_token
            self._observe("request_queue_time_seconds", passage.started - passage.arrival)
            self._observe("request_prefill_time_seconds", passage.first_token - passage.started)
            self._observe("request_decode_time_seconds", decode)
            self._observe("request_inference_time_seconds", passage.last_token - passage.started)
            if passage.num_tokens > 1:
                per_token = decode / (passage.num_tokens - 1)
                self._observe("request_time_per_output_token_seconds", per_token)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)
