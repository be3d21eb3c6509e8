"""Several problems in one error message."""

from collections.abc import Sequence

_MOST = 1000


def listed(problems: Sequence[str]) -> str:
    """A single problem on the same line, several on their own, at most a thousand of them."""
    if len(problems) == 1:
        return f" {problems[0]}"
    more = len(problems) - _MOST
    lines = [*problems[:_MOST], *([f"... and {more} more"] if more > 0 else [])]
    return "".join(f"\n  {line}" for line in lines)
