"""The command eagle3-serve."""

import sys
from collections.abc import Sequence

from convert.command_line.stopping import exit_on_signals
from serve.options.serve_flags import parse_serve_flags


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal. Returns the exit status: 2 for flags or files that cannot be used."""
    argv = sys.argv[1:] if argv is None else argv
    options, without_effect = parse_serve_flags(argv)
    # Importing JAX takes seconds. A mistake in the flags is reported before that.
    with exit_on_signals("eagle3-serve", "it was not ready yet"):
        from serve.launch import run

        return run(options, without_effect, argv)


if __name__ == "__main__":
    sys.exit(main())
