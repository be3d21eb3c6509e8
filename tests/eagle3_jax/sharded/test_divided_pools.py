"""What each device keeps of pools whose contexts neighbours divide."""

from typing import Any

import jax
import pytest
from wide_pair import DRAFTS, wide_minimax, wide_target

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.compiled import shapes_of
from eagle3_jax.engine.programs.initial_state import initial_state, state_shapes
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.state import DecodeState

TOKENS, PAGE_TOKENS = 192, 16


def state_of(target: Target, draft: str, parts: int, **changes: Any) -> DecodeState:
    """On 8 devices, with room for as many tokens whatever the parts."""
    other = DRAFTS[draft](target)
    mesh = make_mesh(8)
    shard(target, mesh)
    shard(other, mesh)
    config = EngineConfig(
        max_num_seqs=2,
        max_model_len=32,
        page_size=PAGE_TOKENS // parts,
        num_pages=TOKENS // PAGE_TOKENS,
        decode_context_parallel_size=parts,
        **changes,
    )
    state = initial_state(target, other, config, 3, mesh)
    assert state_shapes(target, other, config, 3, mesh) == shapes_of(state)
    return state


def bytes_on_each_device(pools: object) -> int:
    """Of the arrays of at least two dimensions: factors of float8 are no rows."""
    arrays = [array for array in jax.tree.leaves(pools) if array.ndim > 1]
    held = {sum(array.addressable_shards[d].data.nbytes for array in arrays) for d in range(8)}
    assert len(held) == 1, "devices hold different amounts"
    return held.pop()


@pytest.mark.parametrize("dtype", ["auto", "fp8"])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_device_keeps_one_part_of_latents_and_its_heads_of_the_rest(
    parts: int, dtype: str
) -> None:
    changes = {"kv_cache_dtype": dtype, "kv_cache_scale": 0.5 if dtype == "fp8" else None}
    for draft, share in (("latent", parts), ("grouped", 1)):
        whole, divided = (state_of(wide_target(), draft, n, **changes) for n in (1, parts))
        pools = bytes_on_each_device(whole.target_pools)
        assert bytes_on_each_device(divided.target_pools) * parts == pools > 0
        pools = bytes_on_each_device(whole.draft_pools)
        assert bytes_on_each_device(divided.draft_pools) * share == pools > 0


def test_kv_heads_that_devices_split_are_not_divided_again() -> None:
    whole, divided = (state_of(wide_minimax(), "grouped", parts) for parts in (1, 4))
    assert bytes_on_each_device(divided.target_pools) == bytes_on_each_device(whole.target_pools)


@pytest.mark.parametrize("devices", [None, 8])
def test_parts_that_do_not_divide_the_devices_are_refused(devices: int | None) -> None:
    target = wide_target()
    config = EngineConfig(decode_context_parallel_size=3)
    mesh = None if devices is None else make_mesh(devices)
    with pytest.raises(ValueError, match=f"the devices of the mesh, {devices or 1}; got 3"):
        state_shapes(target, None, config, 3, mesh)
