"""Whether kernels may compute a row otherwise in another batch.

A kernel that cuts its work by how many sequences there are fills a GPU at every batch size, but the
order of a row's sums then follows from the batch. Where a row's bits must follow from the row
alone, programs are traced within `exact_bits(True)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_exact: ContextVar[bool] = ContextVar("exact", default=False)


@contextmanager
def exact_bits(asked: bool) -> Iterator[None]:
    """Programs that are traced meanwhile give a row the same bits in every batch, if asked.

    A traced program must not be reused outside: JAX's caches do not know of this.
    """
    token = _exact.set(asked)
    try:
        yield
    finally:
        _exact.reset(token)


def asks_for_exact_bits() -> bool:
    """Whether what is traced now must do so."""
    return _exact.get()
