"""Which implementation of an operation runs: one choice, said once, one error that explains itself.

`pallas` is the GPU kernel (interpreted on CPU), `xla` the form for CPU, `reference` the contract.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from pallas_kernels import gpu

_preferred: ContextVar[str | None] = ContextVar("preferred", default=None)
_switched_off: ContextVar[frozenset[str]] = ContextVar("switched_off", default=frozenset())
_log = logging.getLogger(__name__)
Form = Callable[..., Any] | str
"""A function, or the reason why it cannot run here."""
Listener = Callable[[str, Mapping[str, Form], Callable[..., Any]], Callable[..., Any]]
"""Takes an operation, its implementations and the chosen one; gives what is called in its place."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def prefer(implementation: str | None, switched_off: Collection[str] = ()) -> Iterator[None]:
    """Programs that are traced meanwhile use this implementation where a call names none, and of
    operations that are switched off no kernel.

    None prefers nothing else than before, and what was off stays so.
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
def listening(listener: Listener) -> Iterator[None]:
    """Shows every choice to the listener, in what is traced meanwhile."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def candidates(operation: str) -> tuple[str, ...]:
    """What is tried for an operation, in this order, where nothing is named.

    The `xla` forms loop as often as their data say, which a GPU would stop to ask the host about;
    the control flow of `reference` is static.
    """
    names = _usual()
    return ("reference",) if "pallas" in names and operation in _switched_off.get() else names


def _usual() -> tuple[str, ...]:
    preferred = _preferred.get()
    if preferred is not None:
        return (preferred,)
    return ("xla",) if gpu.current().arch == "cpu" else ("pallas", "reference")


def follows_data() -> bool:
    """Whether a loop may run as often as its data say: where the `xla` forms run."""
    return _usual()[0] == "xla"


def choose(
    operation: str,
    implementation: str | None,
    *,
    reference: Form,
    pallas: Form,
    xla: Form | None = None,
) -> Callable[..., Any]:
    """The function that runs `operation`; `None` means what `prefer` says, or the GPU's default.

    Where there is no `xla` form it is the reference. Raises ValueError where none of the names can
    run, with every implementation's reason.
    """
    implementations = {"xla": xla or reference, "reference": reference, "pallas": pallas}
    names = candidates(operation) if implementation is None else (implementation,)
    for name in names:
        found = implementations.get(name)
        if callable(found):
            refused = [f"{n}: {implementations[n]}" for n in names[: names.index(name)]]
            if implementation is None and names != _usual():
                refused.append("pallas: switched off")
            _say(operation, name, *refused)
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
def _say(operation: str, name: str, *refusals: str) -> None:
    """Once for each choice; one that is not the first is a warning."""
    level = logging.WARNING if refusals else logging.INFO
    because = f" ({'; '.join(refusals)})" if refusals else ""
    _log.log(level, "%s runs as %s%s", operation, name, because)
