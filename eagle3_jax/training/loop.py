"""The training loop: batches in a resumable order, checkpoints, and a clean stop on Ctrl-C."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax

from eagle3_jax.training.checkpoint import Checkpoints


class TrainState(NamedTuple):
    """Parameters and optimizer state, as one update returns them to the next."""

    params: Any
    opt_state: Any


class Batches(Iterator[Any], Protocol):
    """An iterator over PackedBatch or ImageTextBatch whose position can be saved as JSON."""

    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


StepFunction = Callable[[TrainState, Any], tuple[TrainState, Any]]
OnStep = Callable[[int, dict[str, float]], None]


class Evaluation(NamedTuple):
    """Measures the parameters after every `every` steps and after the last one."""

    measure: Callable[[Any], Mapping[str, float]]
    every: int


class TrainResult(NamedTuple):
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
) -> TrainResult:
    """Run `steps` steps, or the remaining ones if `resume` finds a checkpoint.

    A checkpoint includes the position in the data, so a resumed run sees the same batches as an
    uninterrupted one. Ctrl-C saves and returns.
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
            # Assigned together, so that an interrupt finds a step either done or not.
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
            return TrainResult(state, step - measuring)  # interrupted in a step: use its checkpoint
    if step:
        checkpoints.save(step, state, place, measured)
    checkpoints.finish()
    return TrainResult(state, step)
