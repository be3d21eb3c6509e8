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


def add_model_argument(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Adds the model in both forms that commands of other engines have."""
    add = group.add_argument
    add("model_positional", metavar="MODEL", nargs="?", help="checkpoint directory, or hub id")
    add("--model", "--model-path", metavar="MODEL", help="the same")


def model_of(flags: argparse.Namespace) -> str | None:
    """The model that was named in either form; ValueError for two, but for one in a file of flags,
    before which the command line goes."""
    first, second = flags.model_positional, flags.model
    if first and second and first != second and not getattr(flags, "config", None):
        raise ValueError(f"two models are named: {first} and --model {second}")
    return first or second


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the groups to a command."""
    add_hub_flags(parser)
    add_tokenizer_flags(parser)


def add_tokenizer_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the group to a command."""
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
    if flags.revision and not model:
        raise ValueError("--revision belongs to a hub id; --demo has no revisions")
    draft = speculation.draft
    return PairSources(
        source_of(flags, model, flags.revision) if model else None,
        source_of(flags, draft, speculation.revision) if draft else None,
        tokenizer_source(flags),
    )


def tokenizer_source(flags: argparse.Namespace) -> Source | None:
    """The tokenizer that was asked for; ValueError for a revision of what has none."""
    if flags.tokenizer:
        return source_of(flags, flags.tokenizer, flags.tokenizer_revision)
    if flags.tokenizer_revision:
        raise ValueError("--tokenizer-revision belongs to --tokenizer; the model's is --revision")
    return None
