"""Show the progress of a conversion: a bar on a terminal, otherwise a line every tenth."""

import time
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from convert.device_memory import GIB


class ByteProgress:
    """A byte counter; the time left is estimated from this run's speed."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console = console
        self._what = what
        self._total = total
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            redirect_stdout=False,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total)
        self._start_s = time.monotonic()
        self._resumed = self._done = 0
        self._tenths = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Release the terminal."""
        self._bar.stop()

    def resume(self, nbytes: int) -> None:
        """Set the bytes that an earlier run completed."""
        self._resumed = self._done = nbytes
        self._bar.update(self._task, completed=nbytes)

    def advance(self, nbytes: int) -> None:
        """Add completed bytes."""
        self._done += nbytes
        self._bar.update(self._task, advance=nbytes)
        tenths = 10 * self._done // max(self._total, 1)
        if not self._console.is_terminal and tenths > self._tenths:
            self._tenths = tenths
            self._console.print(self._line(), highlight=False, soft_wrap=True)

    def _line(self) -> str:
        rate = (self._done - self._resumed) / max(time.monotonic() - self._start_s, 1e-9)
        left = (self._total - self._done) / max(rate, 1)
        return (
            f"{self._what}: {100 * self._done // self._total} %, {self._done / GIB:.2f} of "
            f"{self._total / GIB:.2f} GiB, {rate / 2**20:.0f} MiB/s, {left:.0f} s left"
        )
