"""The command eagle3-quantize."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from rich.console import Console

from convert.command_line.stopping import raising, status_of
from convert.conversion.progress import ByteProgress
from convert.files.safetensors_files import open_checkpoint
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import ALL_FILES
from convert.hub.flags import source_of
from convert.quantize.flags import PROG, parse_quantize_flags
from convert.quantize.report import accept_text, comparison_json, comparison_text, plan_text


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, 2 for unusable flags or files, 130 or 143 after a signal."""
    options = parse_quantize_flags(sys.argv[1:] if argv is None else argv)
    # SIGTERM, as from a scheduler, should clean up like Ctrl-C.
    with raising():
        try:
            (_compare if options.compare else _quantize)(options)
        except KeyboardInterrupt as stopped:
            print(f"{PROG}: stopped, nothing was written", file=sys.stderr)
            return status_of(stopped)
        except (OSError, ValueError) as error:
            print(f"{PROG}: error: {error}", file=sys.stderr)
            return 2
    return 0


def _quantize(options: Namespace) -> None:
    from convert.quantize.run import prepare, write
    from convert.quantize.schemes import scheme_of

    job = prepare(
        find_checkpoint(source_of(options, options.source, options.revision), ALL_FILES),
        options.destination,
        scheme_of(options.scheme, options.group_size),
        exclude=options.exclude,
        exclude_style=options.exclude_style,
        vision=options.vision,
    )
    print(plan_text(job), flush=True)
    if not options.dry_run:
        console, total = Console(stderr=True), job.plan.bytes_read
        with ByteProgress(console, "quantising", total) as progress:
            write(job, progress.advance)


def _compare(options: Namespace) -> None:
    from convert.quantize.accept_change import accept_change
    from convert.quantize.compare import compare

    first = find_checkpoint(source_of(options, options.source, options.revision))
    second = find_checkpoint(source_of(options, options.destination))
    comparison = compare(open_checkpoint(first), open_checkpoint(second))
    change = None
    if options.target:
        change = accept_change(
            find_checkpoint(source_of(options, options.target)),
            first,
            second,
            options.prompts,
            max_tokens=options.max_tokens,
            num_speculative_tokens=options.num_speculative_tokens,
        )
    if options.json:
        print(comparison_json(comparison, change))
        return
    print(comparison_text(comparison, options.limit))
    if change is not None:
        print(accept_text(change))


if __name__ == "__main__":
    sys.exit(main())
