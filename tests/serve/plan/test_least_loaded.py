"""The threshold of loading that a server takes where none is given: the planner's for its pair."""

from dataclasses import replace

import pytest
from published_pairs import draft, target

from eagle3_jax.engine.config import EngineConfig
from pallas_kernels import gpu
from serve.least_loaded import least_loaded
from serve.options.parallel import ParallelOptions
from serve.options.serve_flags import parse_serve_flags
from serve.pair.loading import _with_threshold
from serve.plan.model import host_memory

PAIR = target("kimi-k2.5-mxfp4"), draft("kimi-k2.5-eagle3-mla")
ON_8 = ParallelOptions(8, draft_tensor_parallel_size=8)
CONFIG = EngineConfig(max_model_len=131_072, prefill_chunk=2048, kv_offloading_bytes=2**40)
FLAG = "--kv-offloading-min-tokens"


def test_any_page_is_loaded_on_cpu_and_on_gpus_that_the_planner_does_not_know() -> None:
    assert least_loaded(ON_8, *PAIR, CONFIG) == 1
    with gpu.assume("sm_90"):
        known = least_loaded(ON_8, *PAIR, CONFIG)
    assert known >= 1


@pytest.mark.parametrize("arch", ["gfx950", "gfx942"])
def test_any_page_of_kimi_is_loaded_on_the_gpus_of_this_engine(arch: str) -> None:
    with gpu.assume(arch):
        assert least_loaded(ON_8, *PAIR, CONFIG) == 1


def test_slow_links_raise_it_and_fewer_bytes_lower_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand times slower than MI355X's, in whole pages."""
    monkeypatch.setattr(host_memory, "HOST_LINK", 5e7)
    in_float8 = replace(CONFIG, kv_cache_dtype="fp8", kv_cache_scale=1.0)
    with gpu.assume("gfx950"):
        slow, lighter = (least_loaded(ON_8, *PAIR, config) for config in (CONFIG, in_float8))
    assert 16 < slow < 262_144 and slow % CONFIG.page_tokens == 0
    assert lighter < slow


def test_what_somebody_says_is_taken_and_what_the_model_says_is_told() -> None:
    said: list[str] = []
    modelled = _with_threshold(CONFIG, lambda config: 4096, said.append)
    assert modelled.kv_offloading_least_tokens == 4096
    (line,) = said
    assert "4,096 tokens" in line and FLAG in line
    for given in (1, 100):
        options, _ = parse_serve_flags(["--demo", "--kv-offloading-size", "1", FLAG, f"{given}"])
        kept = _with_threshold(options.engine, lambda config: 4096, said.append)
        assert kept.kv_offloading_least_tokens == given
    assert len(said) == 1
