"""Format several problems as one error message."""

from collections.abc import Sequence

_MOST = 1000


def listed(problems: Sequence[str]) -> str:
    """Return one problem on the same line, or several on a line each, at most a thousand."""
    if len(problems) == 1:
        return f" {problems[0]}"
    more = len(problems) - _MOST
    lines = [*problems[:_MOST], *([f"... and {more} more"] if more > 0 else [])]
    return "".join(f"\n  {line}" for line in lines)
