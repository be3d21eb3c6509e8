"""The flags of eagle3-convert."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convert.command_line.options import COUNT, add_options, option
from convert.command_line.parser import OneLineParser, add_about_flags
from convert.hub.source import add_hub_flags
from convert.store.parameters import ARCHS, ITEM_BYTES

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


def _check_verify(flags: argparse.Namespace) -> None:
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
        prog="eagle3-convert",
        description="Converts a published checkpoint into one that loads onto any mesh.",
        example="eagle3-convert /models/Kimi-K2.5 /models/Kimi-K2.5-store",
    )
    add_about_flags(parser)
    add_options(parser, ConvertFlags)
    add_hub_flags(parser)
    return parser
