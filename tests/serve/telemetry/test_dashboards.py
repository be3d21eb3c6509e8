"""Dashboards find every metric that they ask for: our own and vLLM's."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from fake_engine import FakeEngine
from fake_server import Served, served
from prometheus_client.parser import text_string_to_metric_families

from eagle3_tools.reference import ROOT
from serve.kv_transfer.consumer import TransferCounts
from serve.telemetry.metrics import Metrics, render

OURS = json.loads((ROOT / "docs/deploy/grafana.json").read_text(encoding="utf-8"))
METRICS: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("vllm_dashboards.yaml").read_text(encoding="utf-8")
)
"""Metrics by the dashboard that asks for them."""
NOT_HERE = METRICS.pop("not_here").split()
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
    metrics = Metrics("m")
    metrics.watch_kv_transfers(ends)
    return samples(text + render(metrics.registry))


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


@pytest.mark.parametrize("dashboard", METRICS)
def test_vllms_dashboards_show_no_dead_panel(exported: Samples, dashboard: str) -> None:
    for asked in METRICS[dashboard].split():
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
    assert names.isdisjoint(NOT_HERE)
    told = (ROOT / "docs/deploy/README.md").read_text(encoding="utf-8")
    assert all(name.removeprefix("vllm:") in told for name in NOT_HERE)
