"""A progress line for training."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle3_jax.training.loop import OnStep


@contextmanager
def progress_report(steps: int) -> Iterator[OnStep]:
    """A bar with the latest metrics, shown while the block runs; still on no terminal."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("", total=steps)

        def show(step: int, metrics: dict[str, float]) -> None:
            text = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items())
            progress.update(task, completed=step, description=text)

        yield show
