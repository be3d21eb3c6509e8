"""Progress bar of a sweep, on standard error."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle3_tools.bench.load.openai_server import Outcome
from eagle3_tools.bench.sweep.result import Point


class SweepProgress:
    """A context manager with a bar for the current run and a line for each finished one."""

    def __init__(self, console: Console, runs: int) -> None:
        self._runs, self._ended = runs, 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> "SweepProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def starting(self, configuration: str) -> None:
        """Show that a server is loading and compiling."""
        self._bar.reset(self._task, total=None, description=f"starting {configuration}")

    def begin(self, point: Point, requests: int) -> None:
        load = point.workload
        where = f"{point.configuration} {load.isl}/{load.osl} x {point.concurrency}"
        run = f"[{self._ended + 1}/{self._runs}] {where} seed {point.seed}"
        self._bar.reset(self._task, total=requests, description=run)

    def on_outcome(self, _: Outcome) -> None:
        self._bar.advance(self._task)

    def end(self, result: Mapping[str, Any]) -> None:
        self._ended += 1
        ours = result["eagle3"]
        failed = f", {ours['failed']} FAILED: {ours['first_error']}" if ours["failed"] else ""
        self._bar.console.print(
            f"[{self._ended}/{self._runs}] {ours['configuration']} "
            f"{ours['workload']['isl']}/{ours['workload']['osl']} x {result['max_concurrency']} "
            f"seed {ours['seed']}: {result['output_throughput']:.1f} output tokens/s"
            f"{failed}",
            markup=False,
            highlight=False,
        )
