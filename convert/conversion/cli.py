"""The command eagle3-convert."""

import logging
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from convert.command_line.progress import ByteProgress
from convert.command_line.stopping import exit_at_once, exit_on_signals, handling
from convert.conversion.flags import MIB, parse_convert_flags
from convert.device_memory import GIB
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import CONVERTED
from convert.hub.source import source_of

if TYPE_CHECKING:
    from convert.store.manifest import Manifest

PROG = "eagle3-convert"
FILE_WIDTH = 140


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status.

    0; 1 for a damaged store; 2 for unusable flags or files; 130 or 143 after a signal.
    """
    flags = parse_convert_flags(sys.argv[1:] if argv is None else argv)
    with exit_on_signals(PROG, "repeat the command to go on"):
        return _run(flags)


def _run(flags: Namespace) -> int:
    import jax

    # Keep an accelerator free: arrays only pass through the CPU.
    jax.config.update("jax_platforms", "cpu")
    # Orbax logs a traceback for every error that it also raises.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        if flags.source is not None:
            source = source_of(flags, flags.source, flags.revision)
            flags.source = find_checkpoint(source, CONVERTED)
        if flags.verify:
            return _verify(flags)
        return _dry_run(flags) if flags.dry_run else _convert(flags)
    except (OSError, ValueError) as error:
        print(f"eagle3-convert: error: {error}", file=sys.stderr)
        return 2


def _convert(flags: Namespace) -> int:
    from convert.conversion.conversion import check_finite, check_tokenizer, open_conversion
    from convert.store.writer import partial_directory, refuse_existing, write_store

    refuse_existing(flags.destination)
    conversion = open_conversion(flags.source, int4_order=flags.int4_order, arch=flags.arch)
    _say(*conversion.notes, *check_tokenizer(conversion))
    parameters = conversion.parameters
    total = sum(parameter.nbytes for parameter in parameters)
    partial = partial_directory(flags.destination)

    def check(manifest: "Manifest") -> None:
        conversion.require_unchanged()
        _say(*check_finite(manifest, flags.allow_nonfinite, partial))

    advice = f"repeat the command to resume, or delete {partial}"
    with _progress("converting", total, advice) as progress:
        manifest = write_store(
            flags.destination,
            parameters,
            conversion.origin,
            side_files=flags.source,
            item_bytes=flags.item_mib * MIB,
            check=check,
            on_resumed=progress.resume,
            on_bytes=progress.advance,
        )
    totals = manifest.totals
    print(
        f"{flags.destination}: {totals['parameters']} parameters, {totals['bytes'] / GIB:.2f} GiB"
    )
    return 0


def _dry_run(flags: Namespace) -> int:
    from convert.conversion.conversion import open_conversion
    from convert.conversion.dry_run import plan_lines, print_plan, print_summary

    conversion = open_conversion(flags.source, int4_order=flags.int4_order, arch=flags.arch)
    _say(*conversion.notes)
    summary = print_plan(plan_lines(conversion), flags.mesh, sys.stdout, as_json=flags.json)
    # Print the table to standard error with --json, so that standard output is pure JSON.
    console = Console(stderr=flags.json, width=None if sys.stdout.isatty() else FILE_WIDTH)
    print_summary(console, summary, flags.mesh)
    return 0


def _verify(flags: Namespace) -> int:
    from convert.conversion.conversion import differences_from
    from convert.store.reader import open_store, verify_store

    source, directory = flags.source, flags.destination
    store = open_store(directory, check_files=False)
    totals = store.manifest.totals
    with _progress("verifying", totals["bytes"], "nothing was changed") as progress:
        damaged, damaged_files = verify_store(store, progress.advance)
    if damaged or damaged_files:
        first = (*damaged_files, *damaged)[0]
        _say(
            f"error: {len(damaged)} of {totals['parameters']} parameters and "
            f"{len(damaged_files)} files of {directory} are damaged; the first is {first}"
        )
        return 1
    if source:
        with _progress("comparing", totals["bytes"], "nothing was changed") as progress:
            different = list(differences_from(source, store, progress.advance))
        if different:
            _say(
                f"error: {directory} is not what {source} gives: {len(different)} differences; the "
                f"first is {different[0]}"
            )
            return 1
    print(
        f"{directory}: {totals['parameters']} parameters, {totals['bytes']} bytes, all as the "
        f"manifest says{f' and bit for bit as {source} gives them' if source else ''}"
    )
    return 0


@contextmanager
def _progress(what: str, total: int, advice: str) -> Iterator[ByteProgress]:
    """Show progress on standard error; end the process at once on Ctrl-C or SIGTERM, with advice.

    Files are resumed as after a kill, and threads deep in I/O could not be asked to stop.
    """
    progress = ByteProgress(Console(stderr=True), what, total)

    def on_signal(number: int, _: object) -> None:
        progress.stop()
        exit_at_once(PROG, 128 + number, advice)

    with handling(on_signal), progress:
        yield progress


def _say(*lines: str) -> None:
    for line in lines:
        print(f"eagle3-convert: {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
