"""The flags of eagle3-convert."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from convert.command_line.parser import OneLineParser, add_about_flags
from convert.hub.source import add_hub_flags
from convert.store.parameters import ARCHS, ITEM_BYTES

MIB = 2**20


def parse_convert_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; errors exit with status 2 and one line."""
    parser = _build_parser()
    flags = parser.parse_args(argv)
    try:
        _check(flags)
        flags.mesh = _parse_mesh(flags.mesh)
    except ValueError as error:
        parser.error(str(error))
    return flags


def _check(flags: argparse.Namespace) -> None:
    if flags.json and not flags.dry_run:
        raise ValueError("--json belongs to --dry-run")
    if flags.verify:
        _check_verify(flags)
        return
    if flags.source is None:
        raise ValueError("SRC is missing: the directory of a published checkpoint")
    if flags.destination is None and not flags.dry_run:
        raise ValueError("DST is missing: the directory to make")
    if flags.item_mib < 1:
        raise ValueError(f"--item-mib must be at least 1; got {flags.item_mib}")


def _check_verify(flags: argparse.Namespace) -> None:
    """Check --verify, where a single directory is DST although the parser stored it as SRC."""
    made = {"arch": "gfx950", "int4_order": "auto", "allow_nonfinite": False, "dry_run": False}
    if any(getattr(flags, name) != value for name, value in made.items()):
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
        prog="eagle3-convert",
        description="Converts a published checkpoint into one that loads onto any mesh.",
        example="eagle3-convert /models/Kimi-K2.5 /models/Kimi-K2.5-store",
    )
    add_about_flags(parser)
    parser.add_argument("source", metavar="SRC", nargs="?", help="published checkpoint, or hub id")
    parser.add_argument("destination", metavar="DST", nargs="?", type=Path, help="new directory")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("--json", action="store_true", help="the plan as one JSON object a line")
    parser.add_argument("--mesh", default="tensor=8", help="for the plan's bytes a device")
    parser.add_argument("--arch", choices=ARCHS, default="gfx950", help="its 8-bit floats")
    parser.add_argument(
        "--int4-order",
        choices=("auto", "linear", "awq"),
        default="auto",
        help="of a draft's INT4 per channel, which no file states",
    )
    parser.add_argument(
        "--item-mib",
        type=int,
        default=ITEM_BYTES // MIB,
        metavar="N",
        help="parameters of up to so many MiB are written together",
    )
    parser.add_argument(
        "--allow-nonfinite", action="store_true", help="keep weights that are NaN or infinite"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read a converted checkpoint back and compare: --verify DST with its own checksums, "
        "--verify SRC DST also with what SRC gives",
    )
    add_hub_flags(parser)
    return parser
