"""A resumed run ends where an uninterrupted one ends; an interrupted one loses nothing."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from tiny_pair import random_batch, tiny_target

from eagle3_jax.training.checkpoint import restore_state, save_state
from eagle3_jax.training.loop import Outcome, TrainState, train
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.target import target_step

GRAPHDEF, PARAMS = nnx.split(tiny_target())
OPTIMIZER = adamw(1e-2, 8, warmup=2)


def run(path: Path, steps: int, batch_at=random_batch, resume: bool = True) -> Outcome:
    params = jax.tree.map(jax.numpy.array, PARAMS)  # the loop donates its state
    return train(
        TrainState(params, OPTIMIZER.init(params)),
        target_step(OPTIMIZER, GRAPHDEF),
        batch_at,
        steps=steps,
        checkpoint=path,
        save_every=3,
        report=lambda step, metrics: None,
        resume=resume,
    )


def assert_same(a: object, b: object) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_resumed_run_gives_the_uninterrupted_parameters(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole.npz", 6)
    run(tmp_path / "parts.npz", 4)
    parts = run(tmp_path / "parts.npz", 6)
    assert parts.step == 6
    assert_same(whole.params, parts.params)


def test_ctrl_c_saves_the_steps_done(tmp_path: Path) -> None:
    def interrupted(step: int):
        if step == 3:
            raise KeyboardInterrupt
        return random_batch(step)

    stopped = run(tmp_path / "state.npz", 6, interrupted)
    assert stopped.step == 3
    assert_same(run(tmp_path / "state.npz", 6).params, run(tmp_path / "other.npz", 6).params)


def test_a_failed_save_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.npz"
    save_state(path, {"a": np.ones(3)}, 1)

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_state(path, {"a": np.zeros(3)}, 2)
    state, step = restore_state(path, {"a": np.zeros(3)})
    assert step == 1 and state["a"].tolist() == [1, 1, 1]


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    save_state(tmp_path / "state.npz", {"a": np.ones(3)}, 1)
    with pytest.raises(ValueError, match="another model"):
        restore_state(tmp_path / "state.npz", {"a": np.ones(4)})
