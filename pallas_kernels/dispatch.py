"""Operations with several implementations, and the choice between them.

Implementations: `pallas` (GPU kernel, interpreted on CPU), `xla` (for CPU) and `reference`. Each
choice is logged once; an impossible one raises an error with reasons.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

from pallas_kernels import gpu

_preferred: ContextVar[str | None] = ContextVar("preferred", default=None)
_switched_off: ContextVar[frozenset[str]] = ContextVar("switched_off", default=frozenset())
_exact: ContextVar[bool] = ContextVar("exact", default=False)
_log = logging.getLogger(__name__)
Form = Callable[..., Any] | str
"""A function, or the reason why it cannot run here."""
Listener = Callable[[str, Mapping[str, Form], Callable[..., Any]], Callable[..., Any]]
"""Takes an operation, its implementations and the chosen one; returns the function to call."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@dataclass(frozen=True)
class Operation:
    """An operation: its implementations, all of which take the same arguments.

    A public function checks shapes and calls the operation. Its signature and docstring are those
    of every implementation.

    Attributes:
        name: Name in logs, flags and reports.
        reference: The contract, in plain JAX.
        pallas: The GPU kernel.
        refuse: Returns why the kernel cannot run on these arguments, or None if it can.
        xla: A faster form for CPUs; None runs the reference there.
    """

    name: str
    reference: Callable[..., Any]
    pallas: Callable[..., Any]
    refuse: Callable[..., str | None] = lambda *_, **__: None
    xla: Callable[..., Any] | None = None

    def __call__(self, implementation: str | None, *arguments: Any, **options: Any) -> Any:
        """Run the named implementation, or the default one if it is None; see `choose`."""
        kernel = self.refuse(*arguments, **options) or self.pallas
        forms = {"reference": self.reference, "xla": self.xla, "pallas": kernel}
        return choose(self.name, implementation, **forms)(*arguments, **options)


@contextmanager
def prefer(implementation: str | None, switched_off: Collection[str] = ()) -> Iterator[None]:
    """Set the default implementation while tracing, and switch off kernels of operations.

    None keeps the current default. Kernels that are switched off already stay off.
    """
    tokens = (
        _preferred.set(implementation or _preferred.get()),
        _switched_off.set(_switched_off.get().union(switched_off)),
    )
    try:
        yield
    finally:
        _preferred.reset(tokens[0])
        _switched_off.reset(tokens[1])


@contextmanager
def exact_bits(asked: bool) -> Iterator[None]:
    """Make programs traced in this context give a row the same bits in every batch, if `asked`.

    A kernel that splits its work by the number of sequences fills a GPU at every batch size, but
    then the order of a row's sums depends on the batch. Do not reuse a traced program outside of
    the context: JAX's caches do not know about it.
    """
    token = _exact.set(asked)
    try:
        yield
    finally:
        _exact.reset(token)


def asks_for_exact_bits() -> bool:
    """Return whether exact bits are required of the program being traced."""
    return _exact.get()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Pass every choice made while tracing in this context to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def candidates(operation: str) -> tuple[str, ...]:
    """Return the implementations to try for `operation`, in order, if the call names none.

    On a GPU, `xla` is not among them: its loops have data-dependent trip counts, for which a GPU
    would have to wait for the host. The control flow of `reference` is static.
    """
    names = _usual()
    return ("reference",) if "pallas" in names and operation in _switched_off.get() else names


def _usual() -> tuple[str, ...]:
    preferred = _preferred.get()
    if preferred is not None:
        return (preferred,)
    return ("xla",) if gpu.current().arch == "cpu" else ("pallas", "reference")


def follows_data() -> bool:
    """Return whether loops may have data-dependent trip counts: true where `xla` runs."""
    return _usual()[0] == "xla"


def choose(
    operation: str,
    implementation: str | None,
    *,
    reference: Form,
    pallas: Form,
    xla: Form | None = None,
) -> Callable[..., Any]:
    """Return the function that runs `operation`.

    If `implementation` is None, the default of `prefer` or of the device applies. Without an `xla`
    implementation, `reference` stands in for it. Raises ValueError with the reason of every
    implementation if none of the candidates can run.
    """
    implementations = {"xla": xla or reference, "reference": reference, "pallas": pallas}
    names = candidates(operation) if implementation is None else (implementation,)
    for name in names:
        found = implementations.get(name)
        if callable(found):
            refused = [f"{n}: {implementations[n]}" for n in names[: names.index(name)]]
            if implementation is None and names != _usual():
                refused.append("pallas: switched off")
            _log_choice(operation, name, *refused)
            listener = _listener.get()
            return found if listener is None else listener(operation, implementations, found)
    reasons = {name: found for name, found in implementations.items() if not callable(found)}
    reasons |= {name: "no such implementation" for name in names if name not in implementations}
    available = [name for name, found in implementations.items() if callable(found)]
    raise ValueError(
        f"{operation}: cannot run implementation {' or '.join(map(repr, names))}: "
        + "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        + f"; available: {', '.join(available) or 'none'}"
    )


@cache
def _log_choice(operation: str, name: str, *refusals: str) -> None:
    """Log each choice once: at level WARNING if it is not the first candidate, else INFO."""
    level = logging.WARNING if refusals else logging.INFO
    because = f" ({'; '.join(refusals)})" if refusals else ""
    _log.log(level, "%s runs as %s%s", operation, name, because)
