"""Dashboards find every metric that they ask for: our own and vLLM's."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_server import Served, served
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from docs.generator import ROOT
from serve.kv_transfer.consumer import TransferCounts
from serve.telemetry.exposition import render
from serve.telemetry.metrics import KVTransferCollector

OURS = json.loads((ROOT / "docs/deploy/grafana.json").read_text(encoding="utf-8"))
OF_VLLM = """vllm:e2e_request_latency_seconds_bucket vllm:e2e_request_latency_seconds_count
vllm:e2e_request_latency_seconds_sum vllm:generation_tokens_total vllm:gpu_cache_usage_perc
vllm:inter_token_latency_seconds_bucket vllm:inter_token_latency_seconds_count
vllm:inter_token_latency_seconds_sum vllm:iteration_tokens_total_bucket
vllm:iteration_tokens_total_count vllm:kv_cache_usage_perc vllm:num_preemptions_total
vllm:num_requests_running vllm:num_requests_waiting vllm:prompt_tokens_total
vllm:request_decode_time_seconds_bucket vllm:request_decode_time_seconds_sum
vllm:request_generation_tokens_bucket vllm:request_max_num_generation_tokens_sum
vllm:request_prefill_time_seconds_bucket vllm:request_prefill_time_seconds_sum
vllm:request_prompt_tokens_bucket vllm:request_queue_time_seconds_bucket
vllm:request_queue_time_seconds_sum vllm:request_success_total
vllm:time_per_output_token_seconds_bucket vllm:time_per_output_token_seconds_count
vllm:time_per_output_token_seconds_sum vllm:time_to_first_token_seconds_bucket
vllm:time_to_first_token_seconds_count vllm:time_to_first_token_seconds_sum
vllm:spec_decode_num_accepted_tokens_per_pos_total vllm:spec_decode_num_accepted_tokens_total
vllm:spec_decode_num_draft_tokens_total vllm:spec_decode_num_drafts_total"""
"""What the expressions of vLLM's examples name (prometheus_grafana, and of dashboards/grafana the
statistics, there with underscores for colons, and speculative decoding); of two names for one
thing, both."""
OVERVIEW = """http_request_duration_seconds_count|handler http_request_duration_seconds_sum|handler
http_requests_total|handler http_requests_total|status=2xx vllm:e2e_request_latency_seconds_bucket
vllm:generation_tokens_total vllm:inter_token_latency_seconds_bucket vllm:iteration_tokens_total_sum
vllm:kv_cache_usage_perc vllm:mm_cache_hits_total vllm:mm_cache_queries_total
vllm:num_preemptions_total vllm:num_requests_running vllm:num_requests_waiting
vllm:num_requests_waiting_by_reason|reason=capacity
vllm:num_requests_waiting_by_reason|reason=deferred vllm:prefix_cache_hits_total
vllm:prefix_cache_queries_total vllm:prompt_tokens_by_source_total|source=external_kv_transfer
vllm:prompt_tokens_by_source_total|source=local_cache_hit
vllm:prompt_tokens_by_source_total|source=local_compute vllm:prompt_tokens_total
vllm:request_decode_time_seconds_sum vllm:request_generation_tokens_bucket
vllm:request_prefill_time_seconds_sum vllm:request_prompt_tokens_bucket
vllm:request_queue_time_seconds_bucket vllm:request_success_total|finished_reason=abort
vllm:request_success_total|finished_reason=error vllm:request_success_total|finished_reason=length
vllm:request_success_total|finished_reason=stop
vllm:request_time_per_output_token_seconds_bucket|le=0.1
vllm:request_time_per_output_token_seconds_bucket|le=0.025
vllm:time_to_first_token_seconds_bucket|le=0.75 vllm:time_to_first_token_seconds_bucket|le=1.0
vllm:time_to_first_token_seconds_bucket|le=10.0"""
INSTANCES = """process_cpu_seconds_total process_max_fds process_open_fds
process_resident_memory_bytes process_start_time_seconds vllm:cache_config_info|block_size=16
vllm:cache_config_info|cache_dtype=auto vllm:cache_config_info|enable_prefix_caching=True
vllm:cache_config_info|gpu_memory_utilization=0.9 vllm:cache_config_info|kv_offloading_backend
vllm:cache_config_info|kv_offloading_size=2 vllm:cache_config_info|num_gpu_blocks
vllm:cache_config_info|prefix_caching_hash_algo vllm:engine_sleep_state|sleep_state=awake
vllm:engine_sleep_state|sleep_state=discard_all vllm:iteration_tokens_total_count"""
KV_CACHE = """vllm:prompt_tokens_cached_by_source_total|source=device
vllm:prompt_tokens_cached_by_source_total|source=disk
vllm:prompt_tokens_cached_by_source_total|source=host
vllm:prompt_tokens_cached_by_source_total|source=p2p vllm:prompt_tokens_cached_total
vllm:request_prefill_kv_computed_tokens_count vllm:request_prefill_kv_computed_tokens_sum"""
"""What the expressions of vLLM's dashboards of today name (vllm_overview, vllm_instances and the
rows of vllm_kv_cache that need no option), each with a label, or a label's value, that they ask
for."""
NOT_HERE = """vllm:lora_requests_info vllm:sleep_mode_operation_duration_seconds
vllm:rl_weight_update_operation_duration_seconds vllm:estimated_flops_per_gpu
vllm:estimated_read_bytes_per_gpu vllm:estimated_write_bytes_per_gpu"""
"""Adapters, sleep and estimated FLOPs, which docs/deploy/README.md says are not here."""
BESIDES = """vllm:request_params_max_tokens_bucket vllm:request_params_max_tokens_sum
vllm:request_params_n_bucket vllm:request_params_n_sum process_virtual_memory_bytes"""
"""What others' dashboards of vLLM servers ask for."""
METRIC = re.compile(r"\b(?:(?:vllm|eagle3):|http_|process_)\w+")
LABELS = re.compile(r"by\(([\w, ]+)\)")


Samples = dict[str, list[dict[str, str]]]
"""The labels of each series, by the name of its samples."""


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.fixture(scope="module")
def exported(fake: Served) -> Samples:
    """Metrics of a server after a request."""
    fake.http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 4})
    return samples(fake.http.get("/metrics").text)


@pytest.fixture(scope="module")
def exported_by_all() -> Samples:
    """The same of one that has all that some servers have: pages below the devices, and both ends
    of transfers."""
    with served(FakeEngine(step_s=0.001, cached_tokens=2, cached_below=1)) as server:
        server.http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 4})
        text = server.http.get("/metrics").text
    counts = dict.fromkeys(("bytes_sent", "acknowledged", "expired", "num_kept"), 0)
    ends: Any = SimpleNamespace(
        server=SimpleNamespace(**counts), puller=SimpleNamespace(counts=TransferCounts())
    )
    registry = CollectorRegistry()
    registry.register(KVTransferCollector(("m", "0"), ends))
    return samples(text + render(registry))


def targets() -> list[dict[str, Any]]:
    return [target for panel in OURS["panels"] for target in panel.get("targets", ())]


def test_every_metric_and_label_of_our_dashboard_is_exported(exported_by_all: Samples) -> None:
    assert len(targets()) > 25
    for target in targets():
        expression = target["expr"]
        names = METRIC.findall(expression)
        labels = {label for by in LABELS.findall(expression) for label in re.split(r",\s*", by)}
        labels |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        labels |= {"model_name"} if "model_name" in expression else set()
        assert names and set(names) <= exported_by_all.keys(), expression
        series = [labels for name in names for labels in exported_by_all[name]]
        assert labels <= set().union(*series), expression


@pytest.mark.parametrize("dashboard", [OF_VLLM, OVERVIEW, INSTANCES, KV_CACHE, BESIDES])
def test_vllms_dashboards_show_no_dead_panel(exported: Samples, dashboard: str) -> None:
    for asked in dashboard.split():
        name, _, selector = asked.partition("|")
        label, _, value = selector.partition("=")
        series = exported.get(name, [])
        assert [s for s in series if not label or s.get(label) == (value or s.get(label, ""))], (
            asked
        )
        if name.startswith("vllm:"):
            assert {"model_name", "engine"} <= series[0].keys(), asked


def test_a_server_that_answers_is_awake(fake: Served) -> None:
    """vLLM's panel reads (1 - awake) * (1 + discard_all): 0 is awake, and no series is no panel."""
    found = re.findall(
        r'^vllm:engine_sleep_state{.*sleep_state="(\w+)"} (\d)',
        fake.http.get("/metrics").text,
        re.M,
    )
    assert len(found) == 3 and [state for state, on in found if on == "1"] == ["awake"]


def test_what_is_said_to_be_missing_is_missing(exported: Samples) -> None:
    names = {name.removesuffix("_total").removesuffix("_count") for name in exported}
    assert names.isdisjoint(NOT_HERE.split())
    told = (ROOT / "docs/deploy/README.md").read_text(encoding="utf-8")
    assert all(name.removeprefix("vllm:") in told for name in NOT_HERE.split())
