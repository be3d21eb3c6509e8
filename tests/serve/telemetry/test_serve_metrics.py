"""GET /metrics: vLLM's names, right sums, digits that every collector can read."""

import re
from dataclasses import replace

from fake_engine import FakeEngine
from fake_server import Served
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from eagle3_jax.engine import EngineConfig, Request, RequestOutput, Round
from eagle3_jax.sampling.params import SamplingParams
from serve.telemetry.metrics import Metrics, render

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


SECTION = """spec_decode_num_drafts_total spec_decode_num_draft_tokens_total
spec_decode_num_accepted_tokens_total spec_decode_num_accepted_tokens_per_pos_total|0
prompt_tokens_total generation_tokens_total request_success_total|stop request_success_total|length
request_success_total|abort num_preemptions_total prefix_cache_queries_total
prefix_cache_hits_total num_requests_running num_requests_waiting kv_cache_usage_perc"""
HISTOGRAMS = """time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds
request_prompt_tokens request_generation_tokens iteration_tokens_total"""


def test_every_name_of_vllm_that_clients_read_is_there_before_and_after_a_request(serve) -> None:
    server = serve(FakeEngine())
    for expected in (0, 1):
        samples = scrape(server)
        assert set(SECTION.split()) <= samples.keys()
        for name in HISTOGRAMS.split():
            assert (samples[f"{name}_count"] > 0) == expected, name
        server.http.post("/v1/completions", json=PROMPT)


def test_what_was_asked_for_is_counted_by_prompt_and_http_by_route(serve) -> None:
    server = serve(FakeEngine())
    before = scrape(server)
    body = {"prompt": ["ab", "cd", "ef"], "n": 2, "max_tokens": 6, "stop": "z"}
    answer = server.http.post("/v1/completions", json=body).json()
    server.http.request("BREW", "/pot")
    server.http.get("/" + "x" * 50)
    assert server.http.head("/version").status_code == 200
    assert server.http.head("/metrics").status_code == 200
    samples = scrape(server)
    new = {name: value - before.get(name, 0) for name, value in samples.items()}
    lengths = [len(choice["text"]) for choice in answer["choices"]]
    assert (new["request_params_n_count"], new["request_params_n_sum"]) == (3, 6)
    assert (new["request_params_max_tokens_count"], new["request_params_max_tokens_sum"]) == (3, 18)
    longest = sum(max(pair) for pair in zip(lengths[::2], lengths[1::2], strict=True))
    assert new["request_max_num_generation_tokens_sum"] == longest
    assert new["http_requests_total|/v1/completions|POST|2xx"] == 1
    assert new["http_requests_total|none|other|4xx"] == 1
    assert new["http_requests_total|/version|HEAD|2xx"] == 1
    assert new["http_requests_total|none|GET|4xx"] == 1
    assert samples["process_resident_memory_bytes"] > 2**20


def test_the_caches_size_is_told_in_labels() -> None:
    metrics = Metrics("fake")
    metrics.describe_cache(EngineConfig(max_model_len=256, max_num_seqs=2, page_size=32))
    (family,) = [f for f in metrics.registry.collect() if f.name == "vllm:cache_config_info"]
    (sample,) = family.samples
    pages = int(sample.labels["num_gpu_blocks"])
    assert sample.value == 1 and pages >= 2 * 256 / 32
    assert int(sample.labels["kv_cache_size_tokens"]) == 32 * pages


def test_collectors_of_the_field_read_numbers_above_a_million_right() -> None:
    """By vLLM's rule and by InferenceX's: split at spaces, and digits and dots after the name."""
    rounds = {Round(3, 3, 3, 2, 3): 2_345_678}
    stats = replace(FakeEngine().stats(), rounds=rounds, generation_tokens=12_345_678)
    metrics = Metrics("fake")
    metrics.watch(lambda: stats)
    text = render(metrics.registry)
    vllm = {}
    for line in text.split("\n"):
        if line.startswith("vllm:spec_decode"):
            name, value = line.split()[0].split("{")[0], float(line.split()[-1])
            assert name.endswith("_total")
            vllm[name.removeprefix("vllm:spec_decode_")] = vllm.get(name, 0) + value
    assert vllm["num_drafts_total"] == 2_345_678
    assert vllm["num_accepted_tokens_total"] == 4_691_356
    assert vllm["num_draft_tokens_total"] == 7_037_034
    (tokens,) = re.findall(r"^vllm:generation_tokens_total\{[^}]*\} ([0-9.]+)$", text, re.MULTILINE)
    assert tokens == "12345678"
    assert "_created" not in text and not re.search(r"\de[+-]?\d", text)


def test_small_numbers_are_plain_decimals_and_label_values_are_escaped() -> None:
    registry = CollectorRegistry()
    Gauge("share", "", ("name",), registry=registry).labels('a"b\\c\nd').set(0.00001)
    text = render(registry)
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"name": 'a"b\\c\nd'} and text.endswith(" 0.00001\n")


def output(count: int, finish: str | None = None) -> RequestOutput:
    tokens = tuple(range(count))
    return RequestOutput("r", tokens, "", finish, None, (), 4, 0)  # type: ignore[arg-type]


def test_times_follow_the_clock_of_the_outputs() -> None:
    metrics = Metrics("fake")
    metrics.on_submit(Request("r", [1, 2, 3, 4], SamplingParams()), 10.0)
    metrics.on_started(["r"], 10.5)
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
    assert total("request_queue_time_seconds") == 0.5
    assert total("request_prefill_time_seconds") == 1.5
    assert total("request_decode_time_seconds") == 1.0
    assert total("request_inference_time_seconds") == 2.5
    assert total("e2e_request_latency_seconds") == 3.0
    assert total("request_generation_tokens") == 6
    assert total("iteration_tokens_total") == 6


def test_those_that_wait_for_pages_from_below_are_told_from_the_others() -> None:
    stats = replace(FakeEngine().stats(), num_waiting=5, num_deferred=2)
    metrics = Metrics("fake")
    metrics.watch(lambda: stats)
    text = render(metrics.registry)
    name = "vllm:num_requests_waiting_by_reason"
    found = dict(re.findall(rf'^{name}{{.*reason="(\w+)".*}} (\d+)', text, re.MULTILINE))
    assert found == {"capacity": "3", "deferred": "2"}
