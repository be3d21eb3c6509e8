"""Show warnings of the checkpoint importer to the user."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    """Print a line for the user to standard error; standard output is for results."""
    print(text, file=sys.stderr)


def both(first: Say, second: Say | None) -> Say:
    """Return a function that reports to both, or to the first if there is no second."""

    def say(text: str) -> None:
        first(text)
        if second is not None:
            second(text)

    return say


class _Notices(logging.Handler):
    def __init__(self, say: Say) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"note: {record.getMessage()}")


@contextmanager
def notices(say: Say) -> Iterator[None]:
    """Report each warning of the importer within the block as a line."""
    logger, handler = logging.getLogger("convert"), _Notices(say)
    propagated = logger.propagate
    logger.addHandler(handler)
    # Some libraries configure the root logger, which would repeat every line.
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(handler)
