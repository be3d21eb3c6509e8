"""Show warnings of the checkpoint importer to the user."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Notify = Callable[[str], None]


def print_to_stderr(text: str) -> None:
    """Print a line for the user to standard error; standard output is for results."""
    print(text, file=sys.stderr)


def both(first: Notify, second: Notify | None) -> Notify:
    """Return a function that reports to both, or to the first if there is no second."""

    def notify(text: str) -> None:
        first(text)
        if second is not None:
            second(text)

    return notify


class _Notices(logging.Handler):
    def __init__(self, notify: Notify) -> None:
        super().__init__(logging.WARNING)
        self._notify = notify

    def emit(self, record: logging.LogRecord) -> None:
        self._notify(f"note: {record.getMessage()}")


@contextmanager
def notices(notify: Notify) -> Iterator[None]:
    """Report each warning of the importer within the block as a line."""
    logger, handler = logging.getLogger("convert"), _Notices(notify)
    propagated = logger.propagate
    logger.addHandler(handler)
    # Some libraries configure the root logger, which would repeat every line.
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(handler)
