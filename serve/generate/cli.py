"""The command eagle3-generate."""

import sys
from collections.abc import Sequence

from serve.generate.flags import parse_generate_flags
from serve.interrupt import leave, leave_on_interrupt, raise_on_interrupt


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for flags and files that can't be used; 130 on Ctrl-C."""
    options = parse_generate_flags(sys.argv[1:] if argv is None else argv)
    # Importing JAX takes seconds, which a mistake in the flags shouldn't cost.
    leave_on_interrupt()
    from serve.generate.offline import run

    raise_on_interrupt()
    try:
        return run(options)
    except KeyboardInterrupt:
        leave()
