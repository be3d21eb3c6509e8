"""Parts of pools on each device when neighbours divide contexts."""

from typing import Any

import jax
import pytest
from sweeps import sweep
from wide_pair import DRAFTS, minimax_of_two_kv_heads, wide_minimax, wide_target

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.compiled import shapes_of
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.state import DecodeState

TOKENS, PAGE_TOKENS = 192, 16


def state_of(
    target: Target, draft: str, parts: int, *, devices: int = 8, **changes: Any
) -> DecodeState:
    """With room for as many tokens whatever the parts."""
    other = DRAFTS[draft](target)
    mesh = make_mesh(devices)
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
    layout = StateLayout(target, other, config, 3, mesh)
    state = layout.initial()
    assert layout.shapes() == shapes_of(state)
    return state


def bytes_on_each_device(pools: object) -> int:
    """Count arrays of two or more dimensions; factors of float8 are not rows."""
    arrays = [array for array in jax.tree.leaves(pools) if array.ndim > 1]
    each = zip(*(array.addressable_shards for array in arrays), strict=True)
    held = {sum(shard.data.nbytes for shard in shards) for shards in each}
    assert len(held) == 1, "devices hold different amounts"
    return held.pop()


@pytest.mark.parametrize(
    ("parts", "dtype"), sweep([(2, "auto"), (4, "fp8"), (8, "auto")], [(4, "fp8")])
)
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


@pytest.mark.parametrize(
    ("devices", "parts"), sweep([(4, 1), (4, 2), (8, 1), (8, 2), (8, 4)], [(8, 2)])
)
def test_devices_that_share_a_kv_head_keep_a_part_of_its_context(devices: int, parts: int) -> None:
    """1 / (2 heads x parts) of what one device keeps."""
    one, several = (
        state_of(minimax_of_two_kv_heads(), "of two KV heads", number, devices=size)
        for number, size in ((1, 1), (parts, devices))
    )
    for whole, divided in (
        (one.target_pools, several.target_pools),
        (one.draft_pools, several.draft_pools),
    ):
        assert bytes_on_each_device(divided) * 2 * parts == bytes_on_each_device(whole) > 0


def test_a_draft_divides_a_page_among_as_many_as_share_it() -> None:
    """Latents among 8 devices, each of two KV heads among the 4 that have it."""
    one, several = (
        state_of(wide_target(), "of two KV heads", parts, devices=parts) for parts in (1, 8)
    )
    assert bytes_on_each_device(several.target_pools) * 8 == bytes_on_each_device(one.target_pools)
    assert bytes_on_each_device(several.draft_pools) * 8 == bytes_on_each_device(one.draft_pools)


def test_parts_that_do_not_divide_the_devices_of_a_kv_head_are_refused() -> None:
    with pytest.raises(ValueError, match="share a KV head, 4: 2 heads on 8 devices; got 8"):
        state_of(minimax_of_two_kv_heads(), "of two KV heads", 8)


@pytest.mark.parametrize("devices", [None, 8])
def test_parts_that_do_not_divide_the_devices_are_refused(devices: int | None) -> None:
    target = wide_target()
    config = EngineConfig(decode_context_parallel_size=3)
    mesh = None if devices is None else make_mesh(devices)
    with pytest.raises(ValueError, match=f"the devices of the mesh, {devices or 1}; got 3"):
        StateLayout(target, None, config, 3, mesh)
