"""The command eagle3-convert."""

import logging
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from convert.command_line.options import COUNT, add_options, option
from convert.command_line.parser import OneLineParser, add_about_flags
from convert.command_line.progress import ByteProgress
from convert.command_line.stopping import exit_at_once, exit_on_signals, handling
from convert.device_memory import GIB
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import CONVERTED
from convert.hub.source import add_hub_flags, source_of
from convert.store.parameters import ARCHS, ITEM_BYTES

if TYPE_CHECKING:
    from convert.store.manifest import Manifest

PROG = "eagle3-convert"
FILE_WIDTH = 140
MIB = 2**20


@dataclass(frozen=True)
class ConvertFlags:
    """Options of eagle3-convert."""

    source: str | None = option("SRC", "published checkpoint, or hub id", nargs="?")
    destination: Path | None = option("DST", "new directory", Path, nargs="?")
    dry_run: bool = option("--dry-run", "print the plan, write nothing")
    json: bool = option("--json", "print the plan as one JSON object a line")
    mesh: str = option("--mesh MESH", "devices for the plan's bytes a device", default="tensor=8")
    arch: str = option("--arch", "GPU whose 8-bit floats to write", choices=ARCHS, default="gfx950")
    int4_order: str = option(
        "--int4-order",
        "nibble order of a draft's INT4 weights per channel, which no file states",
        choices=("auto", "linear", "awq"),
        default="auto",
    )
    item_mib: int = option(
        "--item-mib N",
        "write parameters of up to so many MiB together",
        COUNT,
        default=ITEM_BYTES // MIB,
    )
    allow_nonfinite: bool = option("--allow-nonfinite", "keep weights that are NaN or infinite")
    verify: bool = option(
        "--verify",
        "read a converted checkpoint back and compare: --verify DST with its own checksums, "
        "--verify SRC DST also with the conversion of SRC",
    )


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
        print(f"{PROG}: error: {error}", file=sys.stderr)
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
        print(f"{PROG}: {line}", file=sys.stderr)


def parse_convert_flags(argv: Sequence[str]) -> Namespace:
    """Read the command line; errors exit with status 2 and one line."""
    parser = _build_parser()
    flags = parser.parse_args(argv)
    try:
        _check(flags)
        flags.mesh = _parse_mesh(flags.mesh)
    except ValueError as error:
        parser.error(str(error))
    return flags


def _check(flags: Namespace) -> None:
    if flags.json and not flags.dry_run:
        raise ValueError("--json belongs to --dry-run")
    if flags.verify:
        _check_verify(flags)
        return
    if flags.source is None:
        raise ValueError("SRC is missing: the directory of a published checkpoint")
    if flags.destination is None and not flags.dry_run:
        raise ValueError("DST is missing: the directory to make")


def _check_verify(flags: Namespace) -> None:
    """Check --verify, where a single directory is DST although the parser stored it as SRC."""
    made, defaults = ("arch", "int4_order", "allow_nonfinite", "dry_run"), ConvertFlags()
    if any(getattr(flags, name) != getattr(defaults, name) for name in made):
        raise ValueError("--verify takes SRC and DST alone: the store says how it was made")
    if flags.source is None:
        raise ValueError("DST is missing: the converted checkpoint to verify")
    if flags.destination is None:
        flags.source, flags.destination = None, Path(flags.source)


def _parse_mesh(text: str) -> dict[str, int]:
    """Parse `tensor=8,expert=4` into sizes by axis; ValueError for anything else."""
    mesh = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if not axis.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"mesh must look like tensor=8 or tensor=4,expert=2; got {text!r}")
        mesh[axis] = int(size)
    # Experts are spread over the tensor devices unless the mesh states otherwise.
    return {"expert": mesh["tensor"], **mesh} if "tensor" in mesh else mesh


def _build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog=PROG,
        description="Converts a published checkpoint into one that loads onto any mesh.",
        example="eagle3-convert /models/Kimi-K2.5 /models/Kimi-K2.5-store",
    )
    add_about_flags(parser)
    add_options(parser, ConvertFlags)
    add_hub_flags(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
