"""GET /metrics: vLLM's names, right sums, digits that every collector can read."""

import re

from fake_engine import FakeEngine
from fake_server import Served
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from eagle3_jax.engine import Request, RequestOutput
from eagle3_jax.sampling_params import SamplingParams
from serve.exposition import render
from serve.metrics import Metrics

PROMPT = {"prompt": "abcd", "max_tokens": 6}


def scrape(server: Served) -> dict[str, float]:
    """Samples by name and labels other than model_name and engine, read by Prometheus' parser."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            key = sample.name + "".join(f"|{value}" for value in labels.values())
            samples[key.removeprefix("vllm:")] = sample.value
    return samples


def test_counters_add_up_over_requests(serve) -> None:
    server = serve(FakeEngine(width=2, cached_tokens=5))
    for _ in range(2):
        server.http.post("/v1/completions", json=PROMPT | {"n": 2})
    samples = scrape(server)
    # Four answers of six tokens, two a round: twelve rounds, one draft accepted in each.
    assert samples["generation_tokens_total"] == 24
    assert samples["prompt_tokens_total"] == 16
    assert samples["prefix_cache_queries_total"] == 16
    assert samples["prefix_cache_hits_total"] == 5
    assert samples["spec_decode_num_drafts_total"] == 12
    assert samples["spec_decode_num_draft_tokens_total"] == 36
    assert samples["spec_decode_num_accepted_tokens_total"] == 12
    assert samples["spec_decode_num_accepted_tokens_per_pos_total|0"] == 12
    assert samples["spec_decode_num_accepted_tokens_per_pos_total|2"] == 0
    assert samples["eagle3:spec_decode_num_kept_tokens_total"] == 24
    assert samples["eagle3:spec_decode_num_tried_tokens_per_pos_total|1"] == 12
    assert samples["eagle3:spec_decode_num_tried_tokens_per_pos_total|2"] == 0
    assert samples["eagle3:spec_decode_num_skipped_tokens_total|room"] == 0
    assert samples["eagle3:spec_decode_rounds_total|3"] == 12
    assert samples["eagle3:spec_decode_rounds_total|0"] == 0
    assert samples["eagle3:spec_decode_accept_length_bucket|1.0"] == 0
    assert samples["eagle3:spec_decode_accept_length_bucket|2.0"] == 12
    assert samples["eagle3:spec_decode_accept_length_count"] == 12
    assert samples["eagle3:spec_decode_accept_length_sum"] == 24
    assert samples["request_success_total|length"] == 4
    assert samples["request_generation_tokens_sum"] == 24
    assert samples["request_prompt_tokens_count"] == 4
    assert samples["time_to_first_token_seconds_count"] == 4
    assert samples["num_requests_running"] == 0


def test_head_is_answered(fake: Served) -> None:
    assert fake.http.head("/metrics").status_code == 200


def test_numbers_are_plain_decimals_and_nothing_is_called_created() -> None:
    registry = CollectorRegistry()
    Counter("tokens", "", registry=registry).inc(13_345_678)
    Gauge("share", "", registry=registry).set(0.00001)
    Gauge("half", "", registry=registry).set(0.5)
    text = render(registry)
    values = dict(re.findall(r"^(\w+)\{\} (\S+)$", text, re.MULTILINE))
    assert values == {"tokens_total": "13345678", "share": "0.00001", "half": "0.5"}


def test_label_values_are_escaped() -> None:
    registry = CollectorRegistry()
    Gauge("g", "", ("name",), registry=registry).labels('a"b\\c\nd').set(1)
    (family,) = text_string_to_metric_families(render(registry))
    assert family.samples[0].labels == {"name": 'a"b\\c\nd'}


def output(count: int, finish: str | None = None) -> RequestOutput:
    tokens = tuple(range(count))
    return RequestOutput("r", tokens, "", finish, None, (), 4, 0)  # type: ignore[arg-type]


def test_times_follow_the_clock_of_the_outputs() -> None:
    metrics = Metrics("fake")
    metrics.on_submit(Request("r", [1, 2, 3, 4], SamplingParams()), 10.0)
    metrics.on_outputs([output(1)], 12.0)
    metrics.on_outputs([output(3)], 12.25)
    metrics.on_outputs([output(2, "stop")], 13.0)

    def total(name: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"vllm:{name}_sum", {"model_name": "fake", "engine": "0"}
        )

    assert total("time_to_first_token_seconds") == 2.0
    assert total("inter_token_latency_seconds") == 1.0
    assert total("request_time_per_output_token_seconds") == 1.0 / 5
    assert total("request_decode_time_seconds") == 1.0
    assert total("e2e_request_latency_seconds") == 3.0
    assert total("request_generation_tokens") == 6
    assert total("iteration_tokens_total") == 6
