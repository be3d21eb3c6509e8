"""The training loop: batches in an order that can be resumed, checkpoints, a stop on Ctrl-C."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax

from eagle3_jax.training.checkpoint import Checkpoints


class TrainState(NamedTuple):
    """What one update turns into the next: parameters and the optimizer's memory of them."""

    params: Any
    opt_state: Any


class Batches(Iterator[Any], Protocol):
    """An iterator whose place can be kept as JSON, and gone back to. What it gives is what a step
    takes: a PackedBatch, or a PictureBatch."""

    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


StepFunction = Callable[[TrainState, Any], tuple[TrainState, Any]]
OnStep = Callable[[int, dict[str, float]], None]


class Evaluation(NamedTuple):
    """Measures parameters after every so many steps and behind the last one."""

    measure: Callable[[Any], Mapping[str, float]]
    every: int


class Outcome(NamedTuple):
    """State after `step` steps; `step` is below the goal only when interrupted."""

    state: TrainState
    step: int


def train(
    state: TrainState,
    step_function: StepFunction,
    batches: Batches,
    checkpoints: Checkpoints,
    *,
    steps: int,
    save_every: int,
    report: OnStep,
    resume: bool,
    evaluation: Evaluation | None = None,
) -> Outcome:
    """Runs `steps` steps, or what is left of them when `resume` finds a checkpoint.

    A checkpoint holds the place in the data too, so that a resumed run sees what an uninterrupted
    one would. Ctrl-C saves and returns.
    """
    step = 0
    if resume and (found := checkpoints.restore(state)) is not None:
        state, step = found.state, found.step
        batches.set_state(found.data)
    place = batches.get_state()
    batch = next(batches) if step < steps else None
    measured: dict[str, float] | None = None
    measuring = False
    try:
        while batch is not None:
            began, ahead = time.monotonic(), batches.get_state()
            # Together, so that an interrupt finds a step done or not.
            (state, metrics), step, place = step_function(state, batch), step + 1, ahead
            batch = next(batches) if step < steps else None  # read while the device works
            numbers = {name: float(value) for name, value in metrics._asdict().items()}
            seconds = time.monotonic() - began
            measured = None
            if evaluation is not None and (step % evaluation.every == 0 or step == steps):
                measuring = True
                measured = dict(evaluation.measure(state.params))
                measuring = False
            served = {f"served_{name}": value for name, value in (measured or {}).items()}
            report(step, {**numbers, "seconds": seconds, **served})
            if step % save_every == 0 or measured is not None:
                checkpoints.save(step, state, place, measured)
    except KeyboardInterrupt:
        if measuring or any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            checkpoints.finish()
            return Outcome(state, step - measuring)  # within a step: the last checkpoint stands
    if step:
        checkpoints.save(step, state, place, measured)
    checkpoints.finish()
    return Outcome(state, step)
