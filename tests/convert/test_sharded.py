"""A device of a mesh reads what it holds, and a mesh saves what one device would save."""

import tracemalloc
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from edited import copy_edited
from like_whole import assert_like_whole, assert_same_weights
from oracle_files import ORACLES
from sweeps import sweep
from wide_pair import wide_target

from convert import fill, load_draft, load_target, save_hf, save_store
from convert.abstract_model import AbstractModel
from convert.files import safetensors_files
from convert.files.box import box_of
from convert.files.safetensors_files import read_box
from convert.fill import named_variables
from convert.load import prepare_target
from convert.published import forms, read_parameter
from eagle3_jax.mesh import make_mesh, mesh_of
from eagle3_jax.models.target import Target

FOUR, BY_EXPERT = make_mesh(4), make_mesh(2, enable_expert_parallel=True)
TARGETS = [
    ("kimi_bf16", FOUR),
    ("kimi_w4a8_quark", FOUR),
    ("kimi_int4_ct", make_mesh(2)),
    ("kimi_mxfp4_quark", BY_EXPERT),
    ("minimax_bf16", FOUR),
]
PAIRS = [
    ("draft_mha_fp8_ptpc", FOUR),
    ("draft_mha_int4_pc_awq", FOUR),
    ("draft_mha_d2t_bf16", FOUR),
    ("draft_mla_bf16", BY_EXPERT),
]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published target whose every count divides by 8."""
    directory = tmp_path_factory.mktemp("wide")
    save_hf(wide_target(), directory)
    return directory


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of everything that is read from safetensors files from now on."""
    sizes: list[int] = []

    def counted(*where: Any) -> np.ndarray:
        found = read_box(*where)
        sizes.append(found.nbytes)
        return found

    for module in (safetensors_files, read_parameter, forms):
        monkeypatch.setattr(module, "read_box", counted)
    return sizes


@pytest.mark.parametrize(("name", "mesh"), TARGETS)
def test_a_target_is_loaded_as_if_whole_and_then_split(name: str, mesh: jax.sharding.Mesh) -> None:
    assert_like_whole(load_target(ORACLES / name, mesh=mesh), load_target(ORACLES / name), mesh)


@pytest.mark.parametrize(("name", "mesh"), PAIRS)
def test_a_draft_is_loaded_as_if_whole_and_then_split(name: str, mesh: jax.sharding.Mesh) -> None:
    target = load_target(ORACLES / "kimi_bf16", mesh=mesh)
    ours = load_draft(ORACLES / name, target, mesh=mesh)
    assert_like_whole(ours, load_draft(ORACLES / name, target), mesh)


def test_absent_modules_are_the_targets_with_its_split(tmp_path: Path) -> None:
    def strip(tensors: dict[str, np.ndarray]) -> None:
        del tensors["embed_tokens.weight"], tensors["lm_head.weight"]

    bare = copy_edited(ORACLES / "draft_mha_bf16", tmp_path / "bare", tensors=strip)
    target = load_target(ORACLES / "kimi_bf16", mesh=FOUR)
    split, whole = load_draft(bare, target, mesh=FOUR), load_draft(bare, target)
    for draft in (split, whole):
        assert draft.lm_head is target.lm_head and draft.embed_tokens is target.embed_tokens
    held: list[Any] = [draft.fc.kernel.get_value() for draft in (split, whole)]
    assert [len(array.sharding.device_set) for array in held] == [4, 1]
    with pytest.raises(ValueError, match="lies on its target's mesh"):
        load_draft(bare, target, mesh=BY_EXPERT)


@pytest.mark.parametrize("by_expert", [False, True])
def test_a_device_reads_what_it_holds_and_no_more(
    wide: Path, bytes_read: list[int], by_expert: bool
) -> None:
    mesh = make_mesh(8, enable_expert_parallel=by_expert)
    prepared = prepare_target(wide, dtype=jnp.bfloat16, mesh=mesh)
    source: Any = prepared.source
    for device in (0, 7):
        bytes_read.clear()
        held = twice = 0
        for path, variable in named_variables(prepared.model).items():
            value: Any = variable.get_value()
            index = value.sharding.devices_indices_map(value.shape)[jax.devices()[device]]
            part = source.read(path, np.dtype(jnp.bfloat16), box_of(index, value.shape))
            held += part.nbytes
            twice += part.nbytes * ("kv_b_proj" in path)  # keys lie between values in the file
        # The correction bias is float32 in the file.
        assert held + twice <= sum(bytes_read) <= held + twice + 16
        assert held < prepared.device_bytes + 1 < sum(f.stat().st_size for f in wide.iterdir()) / 4


def test_devices_of_one_process_together_read_each_byte_once(
    wide: Path, bytes_read: list[int]
) -> None:
    load_target(wide)
    alone = sum(bytes_read)
    bytes_read.clear()
    load_target(wide, mesh=make_mesh(8))
    assert sum(bytes_read) == alone


def test_host_memory_holds_one_parameter_of_a_reader_at_a_time(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "READERS", 1)

    def elsewhere(
        shape: tuple[int, ...], sharding: Any, read: Callable[[Any], np.ndarray]
    ) -> SimpleNamespace:
        """An array on devices whose memory is not the host's."""
        parts = [read(index) for index in sharding.addressable_devices_indices_map(shape).values()]
        there = jax.ShapeDtypeStruct(shape, parts[0].dtype, sharding=sharding)
        return SimpleNamespace(shape=shape, block_until_ready=lambda: there)

    monkeypatch.setattr(jax, "make_array_from_callback", elsewhere)
    prepared = prepare_target(wide, mesh=make_mesh(8, enable_expert_parallel=True))
    sizes = [v.get_value().size * 4 for v in named_variables(prepared.model).values()]
    tracemalloc.start()
    prepared.fill()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A parameter, and the slab of the file that it is made of.
    assert peak < 1.75 * max(sizes) < sum(sizes) / 2


class SmallDevice:
    """A device that reports the memory of a small GPU."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": self.limit, "bytes_in_use": 1000}

    def __repr__(self) -> str:
        return "Gpu(id=3)"


def test_a_device_too_small_is_refused_before_anything_is_read(
    wide: Path, bytes_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare_target(wide, mesh=make_mesh(8))
    enough = prepared.device_bytes + 1000
    assert enough < sum(f.stat().st_size for f in wide.iterdir()) / 2
    small: Any = [SmallDevice(enough), SmallDevice(enough - 1)]
    monkeypatch.setattr(AbstractModel, "devices", property(lambda _: small))
    with pytest.raises(ValueError, match=r"Gpu\(id=3\) is too small: .* needed .* available"):
        prepared.fill()
    assert bytes_read == []
    small.pop()
    prepared.fill()
    assert bytes_read


@pytest.mark.parametrize(
    ("directory", "devices", "by_expert", "message"),
    [
        ("kimi_bf16", 8, False, "4 attention heads cannot be split evenly over 8 devices"),
        ("kimi_bf16", 4, True, "6 experts cannot be split evenly over 4 devices"),
        ("kimi_int4_ct", 4, False, r"experts.down_proj.scale: 2 of its .* 4 devices"),
    ],
)
def test_a_mesh_that_does_not_divide_is_refused_before_anything_is_read(
    directory: str, devices: int, by_expert: bool, message: str, bytes_read: list[int]
) -> None:
    with pytest.raises(ValueError, match=message):
        load_target(ORACLES / directory, mesh=make_mesh(devices, enable_expert_parallel=by_expert))
    assert bytes_read == []


def test_what_four_devices_save_restores_onto_eight_and_one(wide: Path, tmp_path: Path) -> None:
    target = load_target(wide, mesh=FOUR)
    save_store(target, tmp_path / "stored")
    save_hf(target, tmp_path / "published")
    for directory in (tmp_path / "stored", tmp_path / "published"):
        for mesh in (make_mesh(8), make_mesh(8, enable_expert_parallel=True), None):
            restored = load_target(directory, mesh=mesh)
            assert mesh_of(restored) == mesh and restored.config == target.config
            assert_same_weights(restored, target)


@pytest.mark.parametrize(
    ("name", "by_expert"),
    sweep(product(["kimi_int4_ct", "kimi_mxfp4_quark"], [False, True]), [("kimi_int4_ct", True)]),
)
def test_quantised_targets_restore_as_they_were(name: str, by_expert: bool, tmp_path: Path) -> None:
    target = load_target(ORACLES / name, mesh=make_mesh(2, enable_expert_parallel=by_expert))
    save_store(target, tmp_path / "stored")
    for mesh in (make_mesh(2, enable_expert_parallel=not by_expert), None):
        restored = load_target(tmp_path / "stored", mesh=mesh)
        assert_same_weights(restored, target)
        layers: list[Any] = [model.layers[1] for model in (restored, target)]
        ours, theirs = (layer.mlp.experts.up_proj.format for layer in layers)
        assert ours == theirs


@pytest.mark.parametrize("name", ["draft_mha_d2t_bf16", "draft_mha_fp8_ptpc"])
def test_a_draft_is_saved_from_a_mesh_without_what_is_its_targets(
    name: str, tmp_path: Path
) -> None:
    target = load_target(ORACLES / "kimi_bf16", mesh=FOUR)
    head = "auto" if "d2t" in name else "target"
    draft = load_draft(ORACLES / name, target, mesh=FOUR, lm_head=head)
    save_store(draft, tmp_path / "stored", shared_with=target)
    alone = load_target(ORACLES / "kimi_bf16")
    restored = load_draft(tmp_path / "stored", alone)
    assert (restored.lm_head is alone.lm_head) == (head == "target")
    assert_same_weights(restored, draft)
    if head == "auto":
        save_hf(draft, tmp_path / "published")
        assert_same_weights(load_draft(tmp_path / "published", alone), draft)


def test_one_parameter_is_gathered_at_a_time(wide: Path, tmp_path: Path) -> None:
    target: Target = load_target(wide, dtype="float32", mesh=make_mesh(8))
    sizes = [variable.get_value().nbytes for variable in named_variables(target).values()]
    save_hf(target, tmp_path / "once")
    tracemalloc.start()
    save_hf(target, tmp_path / "saved")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The last two parameters, the next, and a tensor of it.
    assert peak < 3.5 * max(sizes) < sum(sizes)
