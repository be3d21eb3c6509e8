"""Terminal output of eagle3-generate."""

import time
from typing import Self

from rich.console import Console

from eagle3_jax.engine import EngineStats
from serve.startup import counting_bar


class OfflineProgress:
    """A bar on a terminal, and at the end one line of totals."""

    def __init__(self, console: Console, num_prompts: int) -> None:
        self._console = console
        self._num_prompts = num_prompts
        disable = not console.is_terminal
        self._bar = counting_bar(console, "{task.fields[totals]}", disable=disable)
        self._task = self._bar.add_task("compiling", totals="")
        self._totals = ""
        self._start_s = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._totals:
            self._console.print(self._totals, highlight=False)

    def put_out(self, text: str) -> None:
        """Write a line to standard output while the bar is hidden."""
        self._bar.stop()
        print(text, flush=True)
        self._bar.start()

    def on_compiled(self, program: str, done: int, total: int) -> None:
        """Show that `done` of `total` programs are compiled."""
        self._bar.update(self._task, completed=done, total=total)
        if done == total:
            self._start_s = time.monotonic()
            self._bar.update(
                self._task, description="generating", completed=0, total=self._num_prompts
            )

    def on_step(self, done: int, stats: EngineStats) -> None:
        """Show that `done` prompts are finished."""
        elapsed = time.monotonic() - self._start_s
        self._totals = (
            f"{stats.generation_tokens} tokens, {stats.generation_tokens / elapsed:.1f}/s"
        )
        if stats.num_drafts:
            self._totals += f", accept_length {stats.accept_length:.2f}"
        self._bar.update(self._task, completed=done, totals=self._totals)
