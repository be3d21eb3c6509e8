"""Models on 8 forced host devices: what a mesh refuses, and sums that equal one device's."""

from typing import Any

import jax
import numpy as np
import pytest
from wide_pair import DRAFTS, FORMATS, minimax_of_two_kv_heads, wide_target

from eagle3_jax import draft_forward, forward
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.mesh import check_units, make_mesh, mesh_axes, shard
from pallas_kernels import QuantFormat

IDS = np.random.default_rng(0).integers(0, 96, (2, 7))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("devices", "by_expert"), [(8, False), (8, True)])
def test_a_pair_on_a_mesh_computes_what_it_does_on_one_device(
    format: str, devices: int, by_expert: bool
) -> None:
    target, mesh = wide_target(format), make_mesh(devices, enable_expert_parallel=by_expert)
    draft = DRAFTS["latent" if by_expert else "grouped"](target)
    alone = forward(target, IDS)
    drafted = draft_forward(draft, IDS, alone.aux_hidden)
    shard(target, mesh)
    shard(draft, mesh)
    split = forward(target, IDS)
    assert len(split.logits.sharding.device_set) == devices
    assert not split.logits.sharding.is_fully_replicated
    np.testing.assert_allclose(split.logits, alone.logits, atol=2e-5)
    np.testing.assert_allclose(split.aux_hidden, alone.aux_hidden, atol=2e-5)
    for ours, theirs in zip(draft_forward(draft, IDS, alone.aux_hidden), drafted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


@pytest.mark.parametrize(("devices", "by_expert"), [(4, False), (8, True)])
def test_devices_that_share_a_kv_head_compute_what_one_device_does(
    devices: int, by_expert: bool
) -> None:
    target = minimax_of_two_kv_heads()
    draft, mesh = (
        DRAFTS["of two KV heads"](target),
        make_mesh(devices, enable_expert_parallel=by_expert),
    )
    alone = forward(target, IDS)
    drafted = draft_forward(draft, IDS, alone.aux_hidden)
    shard(target, mesh)
    shard(draft, mesh)
    attention: Any = target.layers[0].self_attn
    assert attention.k_proj.split == (None, None)
    np.testing.assert_allclose(forward(target, IDS).logits, alone.logits, atol=2e-5)
    for ours, theirs in zip(draft_forward(draft, IDS, alone.aux_hidden), drafted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_each_device_holds_its_part_alone() -> None:
    target, mesh = wide_target(), make_mesh(8)
    shard(target, mesh)
    layer: Any = target.layers[1]
    parts: list[tuple[Any, tuple[int, ...]]] = [
        (target.lm_head.kernel, (32, 12)),
        (target.embed_tokens.embedding, (12, 32)),
        (layer.self_attn.o_proj.kernel, (6, 32)),
        (layer.self_attn.kv_b_proj.key_kernel, (1, 12, 8)),
        (layer.mlp.experts.gate_proj, (8, 32, 32)),
        (layer.mlp.gate.kernel, (32, 8)),
    ]
    for parameter, part in parts:
        assert {shard.data.shape for shard in parameter.get_value().addressable_shards} == {part}
    shard(by_expert := wide_target(), make_mesh(8, enable_expert_parallel=True))
    experts: Any = by_expert.layers[1].mlp
    assert experts.experts.gate_proj.get_value().addressable_shards[0].data.shape == (1, 32, 256)


def test_replicas_share_experts_and_nothing_else() -> None:
    mesh = make_mesh(2, enable_expert_parallel=True, data_parallel_size=4)
    shard(target := wide_target(), mesh)
    mlp: Any = target.layers[1].mlp
    held = mlp.experts.gate_proj.get_value().addressable_shards
    assert {part.data.shape for part in held} == {(1, 32, 256)}
    assert sorted(part.index[0].start or 0 for part in held) == list(range(8))
    head: Any = target.lm_head.kernel.get_value()
    assert {part.data.shape for part in head.addressable_shards} == {(32, 48)}
    with pytest.raises(ValueError, match="share whole experts"):
        make_mesh(2, data_parallel_size=4)
    with pytest.raises(ValueError, match=r"1\.\.8, .* got 4 for each of 4 replicas"):
        make_mesh(4, enable_expert_parallel=True, data_parallel_size=4)


def test_a_mesh_that_does_not_divide_is_refused_by_what_it_would_cut() -> None:
    with pytest.raises(ValueError, match=r"12 attention heads .* 8 devices; 20 experts"):
        check_units({"heads": 12, "expert": 20}, make_mesh(8, enable_expert_parallel=True))
    check_units({"heads": 16, "expert": 20, "kv_heads": 2}, make_mesh(8))
    with pytest.raises(
        ValueError, match=r"2 KV heads cannot be split .* over 3 devices, nor shared"
    ):
        check_units({"heads": 24, "kv_heads": 2}, make_mesh(3))
    with pytest.raises(ValueError, match=r"layers.0.mlp.down_proj.kernel.scale: 8 of its .* 3 dev"):
        shard(wide_target("mxfp4"), make_mesh(3))


def test_values_under_one_scale_are_not_parted() -> None:
    """192 rows are a block of 128 and a part of one: two devices would need 96 each."""
    kernel = QuantizedKernel((192, 256), ("mlp", "embed"), QuantFormat("fp8_block"))
    with pytest.raises(ValueError, match=r"values: 192 of its \(256, 192\) .* in groups of 128"):
        shard(kernel, make_mesh(2))


def test_a_mesh_wants_enough_devices_of_one_kind() -> None:
    with pytest.raises(ValueError, match=r"must be 1\.\.8, .*; got 9"):
        make_mesh(9)

    class Other:
        device_kind = "gfx950"

    with pytest.raises(ValueError, match=r"of one kind, got .*gfx950"):
        make_mesh(2, devices=[jax.devices()[0], Other()])


def test_axes_that_share_devices_collide() -> None:
    with pytest.raises(ValueError, match=r"collide"):
        mesh_axes(("heads", "mlp"))
