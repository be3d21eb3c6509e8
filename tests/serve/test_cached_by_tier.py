"""Every protocol's usage and the metrics say which tier cached tokens came from."""

from fake_engine import FakeEngine
from fake_server import BODIES, Served

TIERS = {"device": 2, "host": 3, "disk": 0, "remote": 0}


def test_usage_says_which_tier_only_where_something_came_from_below(serve) -> None:
    for below, told in ((3, TIERS), (0, None)):
        server: Served = serve(FakeEngine(cached_tokens=5, cached_below=below))
        answers = {path: server.ask(path, **body) for path, body in BODIES.items()}
        meta = answers.pop("/generate")["meta_info"]
        tiers = {"device": 5 - below, "host": below, "storage": 0}
        assert (meta["cached_tokens"], meta["cached_tokens_details"]) == (5, tiers)
        for path, answer in answers.items():
            usage = answer["usage"]
            found = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or usage
            assert found.get("cached_tokens", found.get("cache_read_input_tokens")) == 5, path
            assert found.get("cached_tokens_details") == told, path


def test_metrics_split_hits_by_tier_and_say_how_full_each_is(serve) -> None:
    server = serve(FakeEngine(cached_tokens=5, cached_below=3))
    server.ask("/v1/completions", prompt="abcdefgh")
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
