"""Show a download's progress as our commands do, instead of the hub library's bars."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, current_thread, main_thread
from types import FrameType
from typing import Any

from huggingface_hub.utils import tqdm

from convert.command_line.stopping import SIGNALS
from convert.conversion.progress import ByteProgress

BYTES = "huggingface_hub.snapshot_download"
"""The library's name of the bar that counts bytes on disk."""


class Silent(tqdm):
    """A bar that shows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


@contextmanager
def stopped_by_signal() -> Iterator[Event]:
    """Yield an event that Ctrl-C and SIGTERM set before their previous handlers run."""
    stopped = Event()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    # A signal without a Python handler ends the process by itself.
    handled = {number: handler for number, handler in before.items() if callable(handler)}

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()
        handled[number](number, frame)

    if current_thread() is not main_thread():
        handled.clear()
    for number in handled:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


def bars_of(progress: ByteProgress, stopped: Event) -> type[Silent]:
    """Return a class of bars that add the library's byte counts to `progress`.

    Once `stopped` is set, they end the library's threads: it waits for them, for up to an hour a
    file.
    """
    # The library downloads several files at a time in threads.
    lock = Lock()

    class Bars(Silent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("name") == BYTES
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts:
                if stopped.is_set():
                    raise InterruptedError("interrupted")
                with lock:
                    progress.advance(int(n or 0))
            return super().update(n)

    return Bars
