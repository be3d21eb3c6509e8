"""The command eagle3-serve."""

import sys
from collections.abc import Sequence

from serve.interrupt import leave_on_interrupt
from serve.options.serve_flags import parse_serve_flags


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until a signal; returns 2 for flags and files that can't be used."""
    options, without_effect = parse_serve_flags(sys.argv[1:] if argv is None else argv)
    # Importing JAX takes seconds, which a mistake in the flags shouldn't cost.
    leave_on_interrupt()
    from serve.launch import run

    return run(options, without_effect)
