"""Configurations that an engine of replicas refuses; tests/worlds has its answers."""

import pytest
from driving import sizes
from setups import pair_on_replicas
from wide_pair import wide_target

from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog


def config_of(replicas: int) -> EngineConfig:
    return sizes(3, data_parallel_size=replicas)


def test_a_mesh_of_other_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data_parallel_size 4 needs a mesh .* this has 2"):
        Engine(*pair_on_replicas(2, 1), config_of(4))
    with pytest.raises(ValueError, match="data_parallel_size 2 needs a mesh"):
        Engine(wide_target(), None, config_of(2))


def test_events_that_would_name_no_replica_are_refused() -> None:
    with pytest.raises(ValueError, match="need data_parallel_size 1; got 2"):
        Engine(*pair_on_replicas(2, 1), config_of(2), kv_events=KVEventLog())
