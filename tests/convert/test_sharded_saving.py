"""From a mesh: what is saved is what one device would save, and restores onto any other mesh."""

import tracemalloc
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from like_whole import assert_same_weights
from oracle_files import ORACLES
from sweeps import sweep

from convert import load_draft, load_target, save_hf, save_store
from convert.fill import named_variables
from eagle3_jax.mesh import make_mesh, mesh_of
from eagle3_jax.models.target import Target


def test_what_four_devices_save_restores_onto_eight_and_one(wide: Path, tmp_path: Path) -> None:
    target = load_target(wide, mesh=FOUR)
    save_store(target, tmp_path / "stored")
    save_hf(target, tmp_path / "published", dtype="float32")
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
        save_hf(draft, tmp_path / "published", dtype="float32")
        assert_same_weights(load_draft(tmp_path / "published", alone), draft)


def test_one_parameter_is_gathered_at_a_time(wide: Path, tmp_path: Path) -> None:
    target: Target = load_target(wide, mesh=make_mesh(8))
    sizes = [variable.get_value().nbytes for variable in named_variables(target).values()]
    save_hf(target, tmp_path / "once")
    tracemalloc.start()
    save_hf(target, tmp_path / "saved")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The last two parameters, the next, and a tensor of it.
    assert peak < 3.5 * max(sizes) < sum(sizes)
