"""Data parallel attention: replicas with rows of their own and experts in common answer as one
device does."""

from typing import Any

import pytest
from broken_programs import compile_rounds_anew
from driving import drive, sizes
from engine_requests import mixed_requests
from setups import pair_on_replicas
from test_sharded_engine import K, differences, on_one_device
from wide_pair import wide_target

from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.programs import executor
from eagle3_jax.layers import moe

CASES: dict[str, tuple[int, int, str, str, dict[str, Any]]] = {
    "2 of one device": (2, 1, "latent", "float32", {}),
    "4 of one device, MXFP4": (4, 1, "grouped", "mxfp4", {}),
    "8 of one device, INT4": (8, 1, "latent", "int4", {}),
    "2 of 2 devices": (2, 2, "grouped", "float32", {}),
    "2 of 4 devices that divide contexts": (
        2,
        4,
        "latent",
        "float32",
        {"page_size": 2, "decode_context_parallel_size": 2},
    ),
    "2 of one device, trees": (
        2,
        1,
        "grouped",
        "float32",
        {"eagle_topk": 2, "num_draft_tokens": 6},
    ),
    "2 of one device, k by batch size": (
        2,
        1,
        "latent",
        "float32",
        {"num_speculative_tokens_per_batch_size": ((1, 2, 3), (3, 4, 1))},
    ),
}
LONG = (
    "4 of one device, MXFP4",
    "2 of 4 devices that divide contexts",
    "2 of one device, k by batch size",
)


def config_of(replicas: int, changes: dict[str, Any]) -> EngineConfig:
    return sizes(K, data_parallel_size=replicas, **changes)


@pytest.mark.parametrize("case", CASES)
def test_replicas_change_no_token(case: str, request: pytest.FixtureRequest) -> None:
    """100 requests with --long, else 12 and a part of the cases."""
    long = bool(request.config.getoption("long"))
    if case in LONG and not long:
        pytest.skip("part of the long form")
    replicas, devices, draft, format, changes = CASES[case]
    requests = mixed_requests(100 if long else 12)
    pair = pair_on_replicas(replicas, devices, draft, format)
    engine = Engine(*pair, config_of(replicas, changes))
    answers = drive(engine, requests)
    found = differences(format, requests, answers, on_one_device(format, len(requests)))
    assert [difference for difference in found if difference.cause is None] == []
    assert len(found) <= 1
    stats = engine.stats()
    assert stats.free_pages == stats.total_pages
    assert 0.1 < stats.num_accepted_tokens / stats.num_drafts


def test_long_chunks_pass_experts_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here 10 of two replicas, so that a chunk of 8 and a round of 16 take two and four passes."""
    monkeypatch.setattr(moe, "MOST_ROWS", 10)
    compile_rounds_anew(monkeypatch, executor, prefills=True)
    requests = mixed_requests(6)
    answers = drive(Engine(*pair_on_replicas(2, 1), config_of(2, {})), requests)
    found = differences("float32", requests, answers, on_one_device("float32", 6))
    assert [difference for difference in found if difference.cause is None] == []


def test_a_mesh_of_other_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data_parallel_size 4 needs a mesh .* this has 2"):
        Engine(*pair_on_replicas(2, 1), config_of(4, {}))
    with pytest.raises(ValueError, match="data_parallel_size 2 needs a mesh"):
        Engine(wide_target(), None, config_of(2, {}))


def test_events_that_would_name_no_replica_are_refused() -> None:
    with pytest.raises(ValueError, match="need data_parallel_size 1; got 2"):
        Engine(*pair_on_replicas(2, 1), config_of(2, {}), kv_events=KVEventLog())
