"""Run the training loop with its output directory, progress and logs."""

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

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
        logs = _logs(options, directory, stack)

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


def _logs(options: argparse.Namespace, directory: Path, stack: ExitStack) -> list[Log]:
    """Open a bar, lines of JSON, event files and Weights & Biases; the first process writes them.

    The bar prints nothing without a terminal.
    """
    if jax.process_index():
        return []
    from tensorboardX import SummaryWriter  # Imports PyTorch if it is there: 1.3 s and 200 MB.

    directory.mkdir(parents=True, exist_ok=True)
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = stack.enter_context(Progress(*columns, TextColumn("{task.description}")))
    task = bar.add_task("", total=options.steps)
    file = stack.enter_context((directory / LOG).open("a", buffering=1, encoding="utf-8"))
    events = stack.enter_context(SummaryWriter(str(directory / "tensorboard")))

    def show(number: int, metrics: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        bar.update(task, completed=number, description=text)

    def write(number: int, metrics: dict[str, float]) -> None:
        entry = {"step": number, "time": time.strftime("%H:%M:%S"), **metrics}
        file.write(f"{json.dumps(entry)}\n")
        for name, value in metrics.items():
            events.add_scalar(name, value, number)

    if not options.wandb:
        return [show, write]
    import wandb  # pyright: ignore[reportMissingImports]

    started = stack.enter_context(wandb.init(project=options.wandb, name=options.output.name))
    return [show, write, lambda number, metrics: started.log(metrics, step=number)]
