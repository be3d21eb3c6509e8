"""Run as a process: writes the small store and kills itself at a given point."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from small_stores import write_small

from convert.store import writer

THIRD = 3


def die(*_: object) -> NoReturn:
    """End this process like `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the signal cannot be caught")


def on_third(function: Callable[..., Any], last: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `function` twice and `last` then."""
    calls = iter([function] * (THIRD - 1) + [last])
    return lambda *args: next(calls)(*args)


def half_written(directory: Path, _: object) -> NoReturn:
    """An item of which a part is on disk."""
    directory.mkdir()
    (directory / "manifest.ocdbt").write_bytes(b"half")
    die()


POINTS: dict[str, Callable[[], None]] = {
    "reading": lambda: setattr(writer, "_read", on_third(writer._read, die)),
    "writing": lambda: setattr(writer, "save_item", on_third(writer.save_item, half_written)),
    "before the journal": lambda: setattr(
        writer, "sync_directory", on_third(writer.sync_directory, die)
    ),
    "before the rename": lambda: setattr(writer, "os", SimpleNamespace(rename=die)),
    "never": lambda: None,
}


if __name__ == "__main__":
    POINTS[sys.argv[1]]()
    write_small(Path(sys.argv[2]))
