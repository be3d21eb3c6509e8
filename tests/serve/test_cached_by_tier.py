"""Every protocol's usage and the metrics say which tier cached tokens came from."""

from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_server import Served

TIERS = {"device": 2, "host": 3, "disk": 0, "remote": 0}
MESSAGES = [{"role": "user", "content": "abcdefgh"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abcdefgh", "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/messages": {"model": "fake", "messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "abcdefgh", "max_output_tokens": 16},
}


@pytest.mark.parametrize("path", BODIES)
def test_usage_says_which_tier_only_where_something_came_from_below(serve, path: str) -> None:
    for below, told in ((3, TIERS), (0, None)):
        server: Served = serve(FakeEngine(cached_tokens=5, cached_below=below))
        usage = server.ask(path, **BODIES[path])["usage"]
        found = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
        assert found.get("cached_tokens", found.get("cache_read_input_tokens")) == 5
        assert found.get("cached_tokens_details") == told
        meta = server.ask("/generate", text="abcdefgh")["meta_info"]
        assert sum(meta["cached_tokens_details"].values()) == 5
        assert meta["cached_tokens_details"]["host"] == below


def test_metrics_split_hits_by_tier_and_say_how_full_each_is(serve) -> None:
    server = serve(FakeEngine(cached_tokens=5, cached_below=3))
    server.http.post("/v1/completions", json=BODIES["/v1/completions"])
    lines = server.http.get("/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))

    def value(name: str, label: str = "") -> float:
        (found,) = [v for key, v in values.items() if key.startswith(name + "{") and label in key]
        return float(found)

    by_tier = "eagle3:prompt_tokens_cached_by_tier_total"
    assert {tier: value(by_tier, f'"{tier}"') for tier in TIERS} == TIERS
    by_source = "vllm:prompt_tokens_by_source_total"
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    assert [value(by_source, source) for source in sources] == [3, 2, 3]
    assert value("vllm:external_prefix_cache_queries_total") == 6
    assert value("vllm:external_prefix_cache_hits_total") == 3
    assert value("eagle3:kv_tier_usage_perc", '"host"') == 0.25
    assert value("eagle3:kv_damaged_pages_total") == 7
    assert value("eagle3:kv_failed_fetches_total") == 8
    assert value("eagle3:kv_foreign_files") == 9
