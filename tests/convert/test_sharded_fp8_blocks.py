"""MiniMax-M2 in FP8 blocks on two devices, by columns and by experts: what it is on one."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from like_whole import assert_like_whole
from sweeps import sweep
from tiny import MINIMAX, tiny_draft, tiny_target

from convert import load_target, save_hf
from convert.quantize.cli import main as quantize
from eagle3_jax import SamplingParams, generate
from eagle3_jax.full_pass import forward
from eagle3_jax.mesh import make_mesh, shard

IDS = np.random.default_rng(0).integers(0, 96, (2, 17))
MESHES = {"columns": make_mesh(2), "experts": make_mesh(2, enable_expert_parallel=True)}
each_mesh = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
CLOSE = 1e-2
"""Of two logits: a sum over devices has other last bits, which may decide how an activation rounds;
that moved none of these by more than 2e-4."""


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


@pytest.mark.long
def test_rounds_on_two_devices_say_what_one_device_would(blocks: Path) -> None:
    """As published, with activations rounded: every token has the best logit of one device."""
    mesh = MESHES["columns"]
    target = load_target(blocks, mesh=mesh)
    draft = tiny_draft(target)
    shard(draft, mesh)
    prompts = [[5, 9, 70, 33, 8], [1, 2, 3, 40, 41]]
    greedy = SamplingParams(temperature=0, max_tokens=12)
    answers = generate(target, draft, prompts, greedy, num_speculative_tokens=3)
    assert sum(sum(answer.accepted) for answer in answers) > 0
    said = np.array([answer.token_ids for answer in answers])
    alone = forward(load_target(blocks), np.concatenate([prompts, said], axis=1))
    logits = np.asarray(alone.logits)[:, len(prompts[0]) - 1 : -1]
    chosen = np.take_along_axis(logits, said[..., None], axis=-1)[..., 0]
    assert (logits.max(-1) - chosen).max() < CLOSE
