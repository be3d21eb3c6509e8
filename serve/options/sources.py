"""Flags of where a pair comes from: directories or hub ids, with their revisions."""

import argparse
from dataclasses import dataclass

from convert.hub.flags import add_hub_flags, source_of
from convert.hub.source import Source
from serve.options.speculation import Speculation


@dataclass(frozen=True)
class PairSources:
    """What names the parts of a pair. target: None for the embedded pair, which brings its draft;
    tokenizer: None for the target's own."""

    target: Source | None = None
    draft: Source | None = None
    tokenizer: Source | None = None


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the group to a command."""
    add_hub_flags(parser)
    group = parser.add_argument_group("tokenizer")
    group.add_argument(
        "--tokenizer",
        "--tokenizer-path",
        metavar="MODEL",
        help="whose tokenizer and chat template to use; default: the model's",
    )
    group.add_argument("--tokenizer-revision", metavar="REV", help="where it is a hub id")


def read_sources(
    flags: argparse.Namespace, model: str | None, speculation: Speculation
) -> PairSources:
    """The group as values; ValueError for a revision of what has none."""
    if flags.tokenizer_revision and not flags.tokenizer:
        raise ValueError("--tokenizer-revision belongs to --tokenizer; the model's is --revision")
    if flags.revision and not model:
        raise ValueError("--revision belongs to a hub id; --demo has no revisions")
    draft, tokenizer = speculation.draft, flags.tokenizer
    return PairSources(
        source_of(flags, model, flags.revision) if model else None,
        source_of(flags, draft, speculation.revision) if draft else None,
        source_of(flags, tokenizer, flags.tokenizer_revision) if tokenizer else None,
    )
