"""The command eagle3-serve."""

import sys
from collections.abc import Sequence

from convert.command_line.stopping import leaving
from serve.options.serve_flags import parse_serve_flags


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until a signal; returns 2 for flags and files that can't be used."""
    argv = sys.argv[1:] if argv is None else argv
    options, without_effect = parse_serve_flags(argv)
    # Importing JAX takes seconds, which a mistake in the flags shouldn't cost.
    with leaving("eagle3-serve", "it was not ready yet"):
        from serve.launch import run

        return run(options, without_effect, argv)


if __name__ == "__main__":
    sys.exit(main())
