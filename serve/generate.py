"""The command eagle3-generate."""

import sys
from collections.abc import Sequence

from serve.generate_flags import parse_generate_flags

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 2 for flags and files that can't be used, 130 after Ctrl-C."""
    options = parse_generate_flags(sys.argv[1:] if argv is None else argv)
    try:
        # Importing JAX takes seconds, which a mistake in the flags shouldn't cost.
        from serve.offline import run

        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
