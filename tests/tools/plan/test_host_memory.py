"""Host memory below the KV cache in a plan: arithmetic done apart, and the default threshold."""

from dataclasses import replace

import pytest
from published_pairs import draft, target

from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.model import host_memory
from eagle3_tools.plan.model.draft_work import draft_shape
from eagle3_tools.plan.model.host_memory import HostMemory
from eagle3_tools.plan.model.memory import kv_pools
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import target_shape


@pytest.fixture(scope="module")
def host() -> HostMemory:
    pair, parallel = (target("kimi-k2.5-mxfp4"), draft("kimi-k2.5-eagle3-mla")), Parallelism(8, 8)
    shapes = Shapes(target_shape(pair[0], parallel), draft_shape(pair[1], parallel), GPUS["MI355X"])
    on = {name: replace(shapes, gpu=GPUS[name]) for name in ("MI355X", "MI325X")}
    pools = kv_pools(*pair, Parallelism())
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
    monkeypatch.setattr(host_memory, "HOST_LINK", 5e7)
    least = host.least_tokens("MI355X")
    assert 16 < least < host.longest
    gains = [
        host.prefill_s("MI355X", tokens) - host.step_s("MI355X") - host.load_s(tokens, 8)
        for tokens in (least - 16, least)
    ]
    assert gains[0] <= 0 < gains[1]
