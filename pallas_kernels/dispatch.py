"""Which implementation of an operation runs: one choice, one error that explains itself."""

from collections.abc import Callable, Mapping
from typing import Any

import jax


def default_implementation() -> str:
    """`xla` on CPU; elsewhere `reference`, whose control flow is static.

    The `xla` forms loop as often as their data say, which a GPU would stop to ask the host about.
    """
    return "xla" if jax.default_backend() == "cpu" else "reference"


def choose(
    operation: str,
    implementation: str | None,
    implementations: Mapping[str, Callable[..., Any] | str],
) -> Callable[..., Any]:
    """The function that runs `operation`; `None` means the backend's default.

    implementations: name -> the function, or the reason (a string) why it cannot run here.
    Raises ValueError for an unknown or an unavailable name, listing what could run and why not.
    """
    chosen = implementations.get(implementation or default_implementation())
    if callable(chosen):
        return chosen
    available = ", ".join(name for name, found in implementations.items() if callable(found))
    reason = "no such implementation" if chosen is None else chosen
    raise ValueError(
        f"{operation}: cannot run implementation={implementation!r}: {reason}; "
        f"available: {available}"
    )
