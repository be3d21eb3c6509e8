"""Ctrl-C and SIGTERM: a command ends with status 130 or 143, and a line that says so."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """One of the signals, as an exception."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def status_of(stopped: KeyboardInterrupt) -> int:
    """What a shell calls the end by the signal behind the exception."""
    return 128 + getattr(stopped, "number", signal.SIGINT)


def leave(prog: str, status: int, advice: str = "") -> NoReturn:
    """Ends the process at once, with a line; a regular exit would crash on programs that JAX still
    runs."""
    name = "Ctrl-C" if status == 128 + signal.SIGINT else signal.Signals(status - 128).name
    print(f"{prog}: stopped by {name}{advice and f'; {advice}'}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def leaving(prog: str, advice: str = "") -> AbstractContextManager[None]:
    """For a block: the signals end the process without an exception, which would abort imports of
    extensions."""
    return handling(lambda number, _: leave(prog, 128 + number, advice))


@contextmanager
def raising() -> Iterator[list[int]]:
    """For a block: the signals raise Stopped, so that what is under way can clean up. Those that
    came are in the list."""
    came: list[int] = []

    def on_signal(number: int, _: object) -> NoReturn:
        came.append(number)
        raise Stopped(number)

    with handling(on_signal):
        yield came


@contextmanager
def handling(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """For a block: the signals are given to the handler."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
