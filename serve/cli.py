"""The command eagle3-serve."""

import sys
from collections.abc import Sequence

from convert.command_line.stopping import leaving
from serve.options.serve_flags import parse_serve_flags
from serve.pair.notices import Say


def main(argv: Sequence[str] | None = None, overhear: Say | None = None) -> int:
    """Serves until a signal; returns 2 for flags and files that can't be used.

    overhear: also told what a process of several has to say of the others.
    """
    argv = sys.argv[1:] if argv is None else argv
    options, without_effect = parse_serve_flags(argv)
    # Importing JAX takes seconds, which a mistake in the flags shouldn't cost.
    with leaving("eagle3-serve", "it was not ready yet"):
        if options.ray:
            from serve.hosts.ray_driver import drive  # Needs the extra ray.
            from serve.pair.notices import say_on_stderr

            return drive(main, argv, options.ray, say_on_stderr)
        from serve.launch import run

        return run(options, without_effect, overhear)


if __name__ == "__main__":
    sys.exit(main())
