"""Models and collectives on 8 forced host devices: what a mesh refuses, and sums that equal one
device's."""

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from driving import sizes
from host_devices import AXES, on_devices
from setups import pair_on_replicas
from sweeps import sweep
from wide_pair import DRAFTS, FORMATS, wide_target

from eagle3_jax import draft_forward, forward
from eagle3_jax.collectives import Axis, all_max, all_sum, all_true, first_column, gather_pairs
from eagle3_jax.engine import Engine
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.mesh import check_units, make_mesh, mesh_axes, shard
from pallas_kernels import QuantFormat

IDS = np.random.default_rng(0).integers(0, 96, (2, 7))


@pytest.mark.parametrize(
    ("format", "by_expert"),
    sweep(product(FORMATS, (False, True)), [("mxfp4", False), ("float32", True)]),
)
def test_a_pair_on_a_mesh_computes_what_it_does_on_one_device(format: str, by_expert: bool) -> None:
    target, mesh = wide_target(format), make_mesh(8, enable_expert_parallel=by_expert)
    draft = DRAFTS["latent" if by_expert else "grouped"](target)
    alone = forward(target, IDS)
    drafted = draft_forward(draft, IDS, alone.aux_hidden)
    shard(target, mesh)
    shard(draft, mesh)
    split = forward(target, IDS)
    assert len(split.logits.sharding.device_set) == 8
    assert not split.logits.sharding.is_fully_replicated
    np.testing.assert_allclose(split.logits, alone.logits, atol=2e-5)
    np.testing.assert_allclose(split.aux_hidden, alone.aux_hidden, atol=2e-5)
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


def test_a_mesh_of_other_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data_parallel_size 4 needs a mesh .* this has 2"):
        Engine(*pair_on_replicas(2, 1), sizes(3, data_parallel_size=4))
    with pytest.raises(ValueError, match="data_parallel_size 2 needs a mesh"):
        Engine(wide_target(), None, sizes(3, data_parallel_size=2))
    with pytest.raises(ValueError, match="need data_parallel_size 1, got 2"):
        Engine(*pair_on_replicas(2, 1), sizes(3, data_parallel_size=2), kv_events=KVEventLog())


PARTS = np.random.default_rng(0).integers(-4, 5, (8, 3, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (all_sum, PARTS.sum(0)),
        (all_max, PARTS.max(0)),
        (lambda x, axis: all_true(x > -4, axis), (PARTS > -4).all(0)),
    ],
)
def test_reductions_give_every_device_the_whole(function: Any, expected: np.ndarray) -> None:
    copies = on_devices(8, lambda part: function(part[0], AXES), split=(0,))(jnp.asarray(PARTS))
    for copy in np.asarray(copies):
        np.testing.assert_array_equal(copy, expected)


def test_pairs_come_in_the_order_of_the_columns_bit_for_bit() -> None:
    scores = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)
    scores[0, :4] = np.nan, -np.inf, -0.0, 1e-45

    def pairs(part: jax.Array, axis: Axis) -> tuple[jax.Array, jax.Array]:
        ids = first_column(part.shape[-1], axis) + jnp.arange(part.shape[-1])
        return gather_pairs(part, jnp.broadcast_to(ids, part.shape), axis)

    found = on_devices(8, partial(pairs, axis=AXES), split=(1,))(jnp.asarray(scores))
    for copies, whole in zip(found, pairs(jnp.asarray(scores), None), strict=True):
        for copy in np.asarray(copies):
            np.testing.assert_array_equal(copy.view(np.int32), np.asarray(whole).view(np.int32))
