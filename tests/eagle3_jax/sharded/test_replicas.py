"""Data parallel attention: replicas with rows of their own and experts in common say what one
device says."""

from dataclasses import replace

import jax
import pytest
from driving import drive, sizes
from engine_requests import mixed_requests
from test_sharded_engine import K, differences, on_one_device
from wide_pair import DRAFTS, wide_target

from eagle3_jax.engine import Engine
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


def pair_on_replicas(
    replicas: int, devices: int, draft: str = "latent", format: str = "float32"
) -> tuple[Target, Eagle3Draft]:
    """The pair on replicas of so many devices each."""
    target = wide_target(format)
    proposing = DRAFTS[draft](target)
    mesh = make_mesh(
        devices,
        enable_expert_parallel=True,
        data_parallel_size=replicas,
        devices=jax.devices()[: replicas * devices],
    )
    shard(target, mesh)
    shard(proposing, mesh)
    return target, proposing


@pytest.mark.parametrize(
    ("replicas", "devices", "draft", "format"),
    [
        (2, 1, "latent", "float32"),
        (4, 1, "grouped", "mxfp4"),
        (8, 1, "latent", "int4"),
        (2, 2, "grouped", "float32"),
    ],
)
def test_replicas_change_no_token(
    replicas: int, devices: int, draft: str, format: str, request: pytest.FixtureRequest
) -> None:
    """100 requests with --long, else 12."""
    requests = mixed_requests(100 if request.config.getoption("long") else 12)
    config = replace(sizes(K), data_parallel_size=replicas)
    engine = Engine(*pair_on_replicas(replicas, devices, draft, format), config)
    answers = drive(engine, requests)
    found = differences(format, requests, answers, on_one_device(format, len(requests)))
    assert [difference for difference in found if difference.cause is None] == []
    assert len(found) <= 1
    stats = engine.stats()
    assert stats.free_pages == stats.total_pages
    assert 0.1 < stats.num_accepted_tokens / stats.num_drafts
