"""Shapes of the state against the state itself."""

import pytest
from wide_pair import DRAFTS, wide_target

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.compiled import shapes_of
from eagle3_jax.engine.programs.initial_state import initial_state, state_shapes
from eagle3_jax.mesh import make_mesh, shard


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("devices", [None, 8])
def test_shapes_of_the_state_are_those_it_has_and_lie_where_it_does(
    devices: int | None, kv_cache_dtype: str
) -> None:
    target = wide_target()
    draft = DRAFTS["grouped"](target)
    mesh = make_mesh(devices) if devices else None
    if mesh:
        shard(target, mesh)
        shard(draft, mesh)
    scale = 0.5 if kv_cache_dtype == "fp8" else None
    config = EngineConfig(
        max_num_seqs=2, max_model_len=32, kv_cache_dtype=kv_cache_dtype, kv_cache_scale=scale
    )
    state = initial_state(target, draft, config, 3, mesh)
    assert state_shapes(target, draft, config, 3, mesh) == shapes_of(state)
