"""Run the training loop with its output directory, progress and logs."""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle3_jax.training.checkpoint import Checkpoints
from eagle3_jax.training.loop import (
    Batches,
    Evaluation,
    StepFunction,
    TrainResult,
    TrainState,
    train,
)

Log = Callable[[int, dict[str, float]], None]
LOG = "log.jsonl"


@contextmanager
def new_output(options: argparse.Namespace) -> Iterator[None]:
    """Remove the output of a training command that fails before its first step.

    Raises ValueError if the output directory has a run that is not to be resumed, or if metrics
    cannot be logged.
    """
    directory = _directory(options)
    if directory.exists() and not options.resume:
        raise ValueError(
            f"{options.output} holds a training run; add --resume or name another --output"
        )
    if options.wandb and find_spec("wandb") is None:
        raise ValueError("--wandb needs the extra `wandb`")
    new = next((path for path in (options.output, directory) if not path.exists()), None)
    try:
        yield
    except BaseException:
        # Before processes have met, each of them counts as the first.
        is_first = not getattr(options, "process_id", None) and jax.process_index() == 0
        if new is not None and not _steps_logged(directory) and is_first:
            shutil.rmtree(new, ignore_errors=True)
        raise


def run(
    options: argparse.Namespace,
    state: TrainState,
    step: StepFunction,
    batches: Batches,
    evaluation: Evaluation | None = None,
) -> tuple[TrainResult, Checkpoints]:
    """Train for options.steps, with progress and logs."""
    directory = _directory(options)
    checkpoints = Checkpoints(directory / "checkpoints")
    with ExitStack() as stack:
        logs = [stack.enter_context(log) for log in _logs(options, directory)]

        def report(number: int, metrics: dict[str, float]) -> None:
            for log in logs:
                log(number, metrics)

        outcome = train(
            state,
            step,
            batches,
            checkpoints,
            steps=options.steps,
            save_every=options.save_every,
            report=report,
            resume=options.resume,
            evaluation=evaluation,
        )
    return outcome, checkpoints


def _directory(options: argparse.Namespace) -> Path:
    return options.output / "training"


def _steps_logged(directory: Path) -> bool:
    log = directory / LOG
    return log.exists() and log.stat().st_size > 0


def _logs(options: argparse.Namespace, directory: Path) -> list[Any]:
    """Open the logs; only the first of several processes writes them."""
    if jax.process_index():
        return []
    directory.mkdir(parents=True, exist_ok=True)
    logs = [_bar(options.steps), _lines(directory / LOG), _tensorboard(directory)]
    return [*logs, _wandb(options)] if options.wandb else logs


@contextmanager
def _bar(steps: int) -> Iterator[Log]:
    """Show a bar with the latest metrics; prints nothing without a terminal."""
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, TextColumn("{task.description}")) as progress:
        task = progress.add_task("", total=steps)

        def show(number: int, metrics: dict[str, float]) -> None:
            text = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items())
            progress.update(task, completed=number, description=text)

        yield show


@contextmanager
def _lines(path: Path) -> Iterator[Log]:
    """Write a line of JSON per step."""
    with path.open("a", buffering=1, encoding="utf-8") as file:

        def write(number: int, metrics: dict[str, float]) -> None:
            entry = {"step": number, "time": time.strftime("%H:%M:%S"), **metrics}
            file.write(f"{json.dumps(entry)}\n")

        yield write


@contextmanager
def _tensorboard(directory: Path) -> Iterator[Log]:
    """Write event files beside the checkpoints."""
    from tensorboardX import SummaryWriter  # Imports PyTorch if it is there: 1.3 s and 200 MB.

    with SummaryWriter(str(directory / "tensorboard")) as writer:

        def write(number: int, metrics: dict[str, float]) -> None:
            for name, value in metrics.items():
                writer.add_scalar(name, value, number)

        yield write


@contextmanager
def _wandb(options: argparse.Namespace) -> Iterator[Log]:
    """Log to a run of Weights & Biases."""
    import wandb  # pyright: ignore[reportMissingImports]

    with wandb.init(project=options.wandb, name=options.output.name) as started:
        yield lambda number, metrics: started.log(metrics, step=number)
