"""The training loop: deterministic batches by step number, checkpoints, a clean stop on Ctrl-C."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from eagle3_jax.training.checkpoint import restore_state, save_state
from eagle3_jax.training.packing import PackedBatch
from pallas_kernels.dispatch import prefer


class TrainState(NamedTuple):
    """What one update turns into the next: parameters and the optimizer's memory of them."""

    params: Any
    opt_state: Any


StepFunction = Callable[[TrainState, Any, PackedBatch], tuple[TrainState, Any]]
OnStep = Callable[[int, dict[str, float]], None]


class Outcome(NamedTuple):
    """Parameters after `step` steps; `step` is below the goal only when interrupted."""

    params: Any
    step: int


def train(
    state: TrainState,
    step_function: StepFunction,
    batch_at: Callable[[int], PackedBatch],
    *,
    frozen: Any = None,
    steps: int,
    checkpoint: Path,
    save_every: int,
    report: OnStep,
    resume: bool,
) -> Outcome:
    """Runs `steps` steps, or what is left of them when `resume` finds a checkpoint.

    `batch_at(step)` depends on the step alone, so a resumed run sees the data an uninterrupted one
    would. `frozen` is passed to every step unchanged. Ctrl-C saves and returns.
    """
    step = 0
    if resume and checkpoint.exists():
        state, step = restore_state(checkpoint, state)
    update = jax.jit(step_function, donate_argnums=0)
    batch = batch_at(step)
    try:
        while step < steps:
            began = time.monotonic()
            with prefer("reference"):  # kernels have no derivatives
                state, metrics = update(state, frozen, batch)
            step += 1
            batch = batch_at(step)  # while the device works
            numbers = {name: float(value) for name, value in metrics._asdict().items()}
            report(step, {**numbers, "seconds": time.monotonic() - began})
            if step % save_every == 0:
                save_state(checkpoint, state, step)
    except KeyboardInterrupt:
        jax.block_until_ready(state)
    save_state(checkpoint, state, step)
    return Outcome(state.params, step)
