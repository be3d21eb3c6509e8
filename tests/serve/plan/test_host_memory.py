"""Host memory below the KV cache: what loading a prefix costs, and from how many tokens a server
loads one where no threshold is given."""

from dataclasses import replace

import pytest
from published_pairs import draft, target

from eagle3_jax.engine.config import EngineConfig
from pallas_kernels import gpu
from serve.least_loaded import least_loaded
from serve.options.parallel import ParallelOptions
from serve.options.serve_flags import parse_serve_flags
from serve.pair.loading import _with_threshold
from serve.plan.data.gpus import GPUS
from serve.plan.model import host_memory
from serve.plan.model.draft_work import draft_shape
from serve.plan.model.host_memory import HostMemory
from serve.plan.model.memory import kv_pools
from serve.plan.model.parallel import Parallelism
from serve.plan.model.rounds import Shapes
from serve.plan.model.target_work import target_shape

PAIR = target("kimi-k2.5-mxfp4"), draft("kimi-k2.5-eagle3-mla")
ON_8 = ParallelOptions(8, draft_tensor_parallel_size=8)
CONFIG = EngineConfig(max_model_len=131_072, prefill_chunk=2048, kv_offloading_bytes=2**40)
SLOW_LINK = 5e7
"""Bytes a second, a thousandth of MI355X's link."""


@pytest.fixture(scope="module")
def host() -> HostMemory:
    parallel = Parallelism(8, 8)
    shapes = Shapes(target_shape(PAIR[0], parallel), draft_shape(PAIR[1], parallel), GPUS["MI355X"])
    on = {name: replace(shapes, gpu=GPUS[name]) for name in ("MI355X", "MI325X")}
    pools = kv_pools(*PAIR, Parallelism())
    return HostMemory(2_400_000_000_000, pools, on, "bfloat16", 16, 2048, 262_144)


def test_a_prefix_takes_what_its_bytes_take_over_the_links(host: HostMemory) -> None:
    """62 layers of 576 numbers: 7.1 GB, 0.11 s and 14 ms; 2.4 TB are 34 million tokens."""
    assert host.token_bytes == 62 * 576 * 2
    assert host.load_s(100_000, 1) == pytest.approx(0.1116, rel=1e-3)
    assert host.load_s(100_000, 8) == pytest.approx(0.01395, rel=1e-3)
    assert host.tokens // 10**6 == 33 and host.tokens % 16 == 0
    assert all(host.prefill_s(gpu, 100_000) > 2 for gpu in host.shapes)


def test_the_threshold_is_where_loading_begins_to_be_sooner(
    host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page on the GPUs of this engine."""
    assert [host.least_tokens(gpu) for gpu in host.shapes] == [16, 16]
    monkeypatch.setattr(host_memory, "HOST_LINK", SLOW_LINK)
    least = host.least_tokens("MI355X")
    assert 16 < least < host.longest
    gains = [
        host.prefill_s("MI355X", tokens) - host.step_s("MI355X") - host.load_s(tokens, 8)
        for tokens in (least - 16, least)
    ]
    assert gains[0] <= 0 < gains[1]


def test_a_server_loads_any_page_unless_links_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert least_loaded(ON_8, *PAIR, CONFIG) == 1, "on a CPU"
    for arch in ("gfx950", "gfx942"):
        with gpu.assume(arch):
            assert least_loaded(ON_8, *PAIR, CONFIG) == 1
    with gpu.assume("sm_90"):
        assert least_loaded(ON_8, *PAIR, CONFIG) >= 1
    monkeypatch.setattr(host_memory, "HOST_LINK", SLOW_LINK)
    in_float8 = replace(CONFIG, kv_cache_dtype="fp8", kv_cache_scale=1.0)
    with gpu.assume("gfx950"):
        slow, lighter = (least_loaded(ON_8, *PAIR, config) for config in (CONFIG, in_float8))
    assert 16 < slow < 262_144 and slow % CONFIG.page_tokens == 0
    assert lighter < slow


def test_a_given_threshold_is_taken_and_the_models_is_told() -> None:
    flag, said = "--kv-offloading-min-tokens", list[str]()
    modelled = _with_threshold(CONFIG, lambda config: 4096, said.append)
    assert modelled.kv_offloading_least_tokens == 4096
    (line,) = said
    assert "4,096 tokens" in line and flag in line
    for given in (1, 100):
        options, _ = parse_serve_flags(["--demo", "--kv-offloading-size", "1", flag, f"{given}"])
        kept = _with_threshold(options.engine, lambda config: 4096, said.append)
        assert kept.kv_offloading_least_tokens == given
    assert len(said) == 1
