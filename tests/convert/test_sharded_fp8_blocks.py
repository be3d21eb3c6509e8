"""MiniMax-M2 in FP8 blocks on two devices, by columns and by experts: what it is on one."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from like_whole import assert_like_whole
from sweeps import sweep
from tiny import MINIMAX, tiny_target

from convert import load_target, save_hf
from convert.quantize.cli import main as quantize
from eagle3_jax.full_pass import forward
from eagle3_jax.mesh import make_mesh

IDS = np.random.default_rng(0).integers(0, 96, (2, 17))
MESHES = {"columns": make_mesh(2), "experts": make_mesh(2, enable_expert_parallel=True)}
each_mesh = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published target, a block or two of every matrix for each device."""
    directory = tmp_path_factory.mktemp("blocks")
    target = tiny_target(config=replace(MINIMAX, head_dim=128, intermediate_size=256))
    save_hf(target, directory / "floats")
    argv = [str(directory / "floats"), str(directory / "fp8"), "--scheme", "fp8_block"]
    assert quantize(argv) == 0
    return directory / "fp8"


@each_mesh
def test_each_device_reads_its_blocks(blocks: Path, mesh: jax.sharding.Mesh) -> None:
    ours = load_target(blocks, mesh=mesh)
    assert_like_whole(ours, load_target(blocks), mesh)


@pytest.mark.parametrize("mesh", sweep(MESHES.values(), [MESHES["experts"]]))
def test_two_devices_compute_what_one_does(blocks: Path, mesh: jax.sharding.Mesh) -> None:
    """Activations as they are, so that no rounding hides what is missing from a sum."""
    split = forward(load_target(blocks, mesh=mesh, quantize_activations=False), IDS)
    whole = forward(load_target(blocks, quantize_activations=False), IDS)
    assert len(split.logits.sharding.device_set) == 2
    np.testing.assert_allclose(split.logits, whole.logits, rtol=0, atol=2e-5)
