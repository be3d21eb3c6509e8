"""Which implementation of an operation runs: one choice, one error that explains itself."""

from collections.abc import Callable, Mapping
from typing import Any

DEFAULT = "xla"


def choose(
    operation: str,
    implementation: str | None,
    implementations: Mapping[str, Callable[..., Any] | str],
) -> Callable[..., Any]:
    """The function that runs `operation`; `None` means XLA's own operations.

    implementations: name -> the function, or the reason (a string) why it cannot run here.
    Raises ValueError for an unknown or an unavailable name, listing what could run and why not.
    """
    chosen = implementations.get(DEFAULT if implementation is None else implementation)
    if callable(chosen):
        return chosen
    available = ", ".join(name for name, found in implementations.items() if callable(found))
    reason = "no such implementation" if chosen is None else chosen
    raise ValueError(
        f"{operation}: cannot run implementation={implementation!r}: {reason}; "
        f"available: {available}"
    )
