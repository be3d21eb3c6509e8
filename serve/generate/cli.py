"""The command eagle3-generate."""

import sys
from collections.abc import Sequence

from convert.command_line.stopping import (
    Stopped,
    exit_at_once,
    exit_on_signals,
    raise_on_signals,
    status_of,
)
from serve.generate.flags import parse_generate_flags

PROG = "eagle3-generate"


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, 2 for unusable flags or files, 130 or 143 after a signal."""
    options = parse_generate_flags(sys.argv[1:] if argv is None else argv)
    # Check the flags first, because importing JAX takes seconds.
    with exit_on_signals(PROG):
        from serve.generate.offline import run

    with raise_on_signals():
        try:
            return run(options)
        except Stopped as stopped:
            exit_at_once(PROG, status_of(stopped))


if __name__ == "__main__":
    sys.exit(main())
