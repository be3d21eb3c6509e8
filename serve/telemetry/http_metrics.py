"""Prometheus metrics of HTTP requests: outcomes, and what they asked for.

The names are those of vLLM and of the instrumentation it uses. A request may have several prompts,
and each prompt several choices: what vLLM calls a request is a prompt here.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from serve.telemetry.engine_metrics import LABELS
from serve.telemetry.record import RequestRecord

COUNTS = (1, 2, 5, 10, 20)
SECONDS = (0.1, 0.5, 1.0)
"""Few, as each route and method is a series. `vllm:e2e_request_latency_seconds` is finer."""
TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
HISTOGRAMS = (
    ("request_params_n", "Choices asked for of a prompt", COUNTS),
    ("request_params_max_tokens", "Tokens asked for at most", TOKENS),
    ("request_max_num_generation_tokens", "Tokens of a prompt's longest choice", TOKENS),
)
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")


class HttpMetrics:
    """Updates metrics from the records of requests."""

    def __init__(self, registry: CollectorRegistry, labels: Sequence[str]) -> None:
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", text, LABELS, buckets=buckets, registry=registry
            ).labels(*labels)
            for name, text, buckets in HISTOGRAMS
        }
        # No label may contain client input: each value would be a series forever.
        self._ended = Counter(
            "http_requests",
            "HTTP requests ended, by route, method and hundreds of the status",
            ("handler", "method", "status"),
            registry=registry,
        )
        self._durations = Histogram(
            "http_request_duration_seconds",
            "From a request's head to the last byte of its answer, by route and method",
            ("handler", "method"),
            buckets=SECONDS,
            registry=registry,
        )

    def on_record(self, record: RequestRecord) -> None:
        """Update the metrics with a request that has ended."""
        method = record.method if record.method in METHODS else "other"
        status = f"{record.status // 100}xx"
        route = record.route or "none"
        self._ended.labels(route, method, status).inc()
        self._durations.labels(route, method).observe(record.duration)
        if record.generated is None:
            return
        for siblings in record.generated.by_prompt:
            longest = max(len(state.token_ids) for state in siblings)
            asked = siblings[0].request.sampling.max_tokens
            self._histograms["request_params_n"].observe(len(siblings))
            self._histograms["request_max_num_generation_tokens"].observe(longest)
            if asked is not None:
                self._histograms["request_params_max_tokens"].observe(asked)
