"""Dashboards find every metric that they ask for: our own, and those that vLLM ships."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_server import served
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from docs.generator import ROOT
from serve.kv_transfer.consumer import PullCounts
from serve.telemetry.exposition import render
from serve.telemetry.kv_transfer_metrics import KVTransferCollector

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
BESIDES = """http_requests_total process_cpu_seconds_total process_open_fds
process_resident_memory_bytes process_start_time_seconds process_virtual_memory_bytes
vllm:cache_config_info vllm:prompt_tokens_cached_total vllm:request_params_max_tokens_bucket
vllm:request_params_max_tokens_sum vllm:request_params_n_bucket vllm:request_params_n_sum
vllm:num_requests_waiting_by_reason"""
"""What others' dashboards of vLLM servers ask for."""
METRIC = re.compile(r"\b(?:(?:vllm|eagle3):|http_|process_)\w+")
LABELS = re.compile(r"by\(([\w, ]+)\)")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Names of samples, with the labels they have, after a request, of a server that has all that
    some servers have: pages below the devices, and both ends of transfers."""
    found: dict[str, set[str]] = {}
    with served(FakeEngine(step_s=0.001, cached_tokens=2, cached_below=1)) as server:
        server.http.post("/v1/completions", json={"prompt": "ab", "max_tokens": 4})
        text = server.http.get("/metrics").text
    for family in text_string_to_metric_families(text + render(transfers_registry())):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def transfers_registry() -> CollectorRegistry:
    """What a server with a role has besides."""
    counts = dict.fromkeys(("bytes_sent", "acknowledged", "expired", "num_kept"), 0)
    ends: Any = SimpleNamespace(
        server=SimpleNamespace(**counts), puller=SimpleNamespace(counts=PullCounts())
    )
    registry = CollectorRegistry()
    registry.register(KVTransferCollector(("m", "0"), ends))
    return registry


def targets() -> list[dict[str, Any]]:
    return [target for panel in OURS["panels"] for target in panel.get("targets", ())]


def test_every_metric_and_label_of_our_dashboard_is_exported(
    exported: dict[str, set[str]],
) -> None:
    assert len(targets()) > 25
    for target in targets():
        expression = target["expr"]
        names = METRIC.findall(expression)
        labels = {label for by in LABELS.findall(expression) for label in re.split(r",\s*", by)}
        labels |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        labels |= {"model_name"} if "model_name" in expression else set()
        assert names and set(names) <= exported.keys(), expression
        assert labels <= set().union(*(exported[name] for name in names)), expression


@pytest.mark.parametrize("name", [*OF_VLLM.split(), *BESIDES.split()])
def test_vllms_dashboards_show_no_dead_panel(exported: dict[str, set[str]], name: str) -> None:
    assert name in exported
    if name.startswith("vllm:"):
        assert {"model_name", "engine"} <= exported[name]
