"""The progress of a download as a command shows it, in the place of the hub library's bars."""

from threading import Lock
from typing import Any

from huggingface_hub.utils import tqdm

from convert.conversion.progress import ByteProgress

BYTES = "huggingface_hub.snapshot_download"
"""What the library calls the bar of the bytes that are on disk."""


class Silent(tqdm):
    """A bar that shows nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def bars_of(progress: ByteProgress) -> type[Silent]:
    """The class of bars that advance this one, by the bytes that the library counts."""
    # Several files are downloaded at a time, by threads.
    lock = Lock()

    class Bars(Silent):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._counts = kwargs.get("name") == BYTES
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts:
                with lock:
                    progress.advance(int(n or 0))
            return super().update(n)

    return Bars
