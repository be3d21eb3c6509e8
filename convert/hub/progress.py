"""The progress of a download as a command shows it, in the place of the hub library's bars."""

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
"""What the library calls the bar of the bytes that are on disk."""


class Silent(tqdm):
    """A bar that shows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


@contextmanager
def stopped_by_signal() -> Iterator[Event]:
    """An event that Ctrl-C and SIGTERM set, before they do what they did."""
    stopped = Event()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    # A signal without a handler ends the process by itself.
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
    """The class of bars that advance this one, by the bytes that the library counts, and that end
    its threads when they should stop: it waits for them, and a file may take an hour."""
    # Several files are downloaded at a time, by threads.
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
