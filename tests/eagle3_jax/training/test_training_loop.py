"""A resumed run ends where an uninterrupted one ends; an interrupted one loses nothing."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from tiny_pair import VOCAB, tiny_target

from eagle3_jax.training.batches import packed_batches
from eagle3_jax.training.checkpoint import Checkpoints
from eagle3_jax.training.loop import (
    Batches,
    Evaluation,
    StepFunction,
    TrainResult,
    TrainState,
    train,
)
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.packing import Sample
from eagle3_tools.make_demo.training.target import target_step

OPTIMIZER = adamw(1e-2, 8, warmup=2)


@functools.cache
def target() -> tuple[StepFunction, Any]:
    """A step of the target, and its first parameters."""
    graphdef, params = nnx.split(tiny_target())
    return target_step(OPTIMIZER, graphdef), params


def batches() -> Batches:
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, VOCAB, size).tolist() for size in rng.integers(6, 12, 40)]
    samples = [Sample(each, [i > 2 for i in range(len(each))]) for each in ids]
    return packed_batches(samples, 2, 24, seed=3, epochs=4)


def run(path: Path, steps: int, data: Batches | None = None, **options: Any) -> TrainResult:
    step, params = target()
    params = jax.tree.map(jax.numpy.array, params)  # a step donates its state
    return train(
        TrainState(params, OPTIMIZER.init(params)),
        step,
        data or batches(),
        Checkpoints(path),
        steps=steps,
        save_every=3,
        report=lambda step, metrics: None,
        resume=True,
        **options,
    )


def assert_same(a: object, b: object) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


class Interrupted:
    """Batches, and Ctrl-C in place of the fourth."""

    def __init__(self) -> None:
        self.inner, self.read = batches(), 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.read += 1
        if self.read == 4:
            raise KeyboardInterrupt
        return next(self.inner)

    def get_state(self) -> dict[str, Any]:
        return self.inner.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.inner.set_state(state)


def test_ctrl_c_saves_the_steps_done(tmp_path: Path) -> None:
    stopped = run(tmp_path / "run", 6, Interrupted())
    assert stopped.step == 3
    resumed, whole = run(tmp_path / "run", 6), run(tmp_path / "other", 6)
    assert_same(resumed.state, whole.state)


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    lengths = iter([1.0, 3.0, 2.0, 2.0, 1.5, 1.5])
    measured = Evaluation(lambda params: {"accept_length": next(lengths)}, 1)
    run(tmp_path, 6, evaluation=measured)
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.best_step == 2
    found = checkpoints.restore(run(tmp_path, 6).state, 2)
    assert found is not None and found.step == 2
    assert_same(found.state, run(tmp_path / "two", 2).state)


def test_ctrl_c_while_drafts_are_measured_leaves_no_step_unmeasured(tmp_path: Path) -> None:
    """Neither within the run nor at its last step, which is not done either."""
    lengths: Iterator[float | None] = iter([1.0, None, 3.0, None, 2.0])

    def measure(params: object) -> dict[str, float]:
        if (length := next(lengths)) is None:
            raise KeyboardInterrupt
        return {"accept_length": length}

    measured = Evaluation(measure, 2)
    assert run(tmp_path / "run", 6, evaluation=measured).step == 3
    assert run(tmp_path / "run", 6, evaluation=measured).step == 5
    whole = run(tmp_path / "run", 6, evaluation=measured)
    assert whole.step == 6 and Checkpoints(tmp_path / "run").best_step == 4
    assert_same(whole.state, run(tmp_path / "other", 6).state)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": np.ones(3)}, {}, None)
    checkpoints.finish()
    for other in ({"a": np.ones(4)}, {"b": np.ones(3)}):
        with pytest.raises(ValueError, match="another model"):
            checkpoints.restore(other)
