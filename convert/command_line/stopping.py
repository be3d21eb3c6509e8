"""End a command on Ctrl-C or SIGTERM with status 130 or 143 and one line of explanation."""

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
    """Return the exit status that a shell reports for the signal behind the exception."""
    return 128 + getattr(stopped, "number", signal.SIGINT)


def exit_at_once(prog: str, status: int, advice: str = "") -> NoReturn:
    """Print a line and end the process at once: a regular exit would crash on JAX's programs."""
    name = "Ctrl-C" if status == 128 + signal.SIGINT else signal.Signals(status - 128).name
    print(f"{prog}: stopped by {name}{advice and f'; {advice}'}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def exit_on_signals(prog: str, advice: str = "") -> AbstractContextManager[None]:
    """End the process on a signal; an exception would abort imports of extension modules."""
    return handling(lambda number, _: exit_at_once(prog, 128 + number, advice))


@contextmanager
def raise_on_signals() -> Iterator[list[int]]:
    """Raise Stopped on a signal, so that work can clean up; yield the list of signals."""
    came: list[int] = []

    def on_signal(number: int, _: object) -> NoReturn:
        came.append(number)
        raise Stopped(number)

    with handling(on_signal):
        yield came


@contextmanager
def handling(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Call `handler` for the signals in this block."""
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
