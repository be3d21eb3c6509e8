"""Warnings of the checkpoint importer as lines for the user."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]


def say_on_stderr(text: str) -> None:
    """One line for the user; standard output belongs to results."""
    print(text, file=sys.stderr)


def both(first: Say, second: Say | None) -> Say:
    """Says it to either, if there is a second."""

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
    """Whatever the importer warns of within the block is said, a line each."""
    logger, handler = logging.getLogger("convert"), _Notices(say)
    propagated = logger.propagate
    logger.addHandler(handler)
    # Some libraries configure the root logger, which would say everything again.
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(handler)
