"""Mode in which a row's bits do not depend on its batch.

A kernel that splits its work by the number of sequences fills a GPU at every batch size, but then
the order of a row's sums depends on the batch. Programs traced within `exact_bits(True)` avoid
this.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_exact: ContextVar[bool] = ContextVar("exact", default=False)


@contextmanager
def exact_bits(asked: bool) -> Iterator[None]:
    """Make programs traced in this context give a row the same bits in every batch, if `asked`.

    Do not reuse a traced program outside of the context: JAX's caches do not know about it.
    """
    token = _exact.set(asked)
    try:
        yield
    finally:
        _exact.reset(token)


def asks_for_exact_bits() -> bool:
    """Return whether exact bits are required of the program being traced."""
    return _exact.get()
