"""Flags of a pair's sources: directories or hub ids, with their revisions."""

import argparse
from dataclasses import dataclass

from convert.hub.source import Source, add_hub_flags, source_of
from serve.options.speculation import Speculation


@dataclass(frozen=True)
class PairSources:
    """The sources of a pair; no target means an embedded pair, no tokenizer the target's."""

    target: Source | None = None
    draft: Source | None = None
    tokenizer: Source | None = None


def add_model_argument(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """Add the model argument, positional and as --model, since other engines have both forms."""
    add = group.add_argument
    add("model_positional", metavar="MODEL", nargs="?", help="checkpoint directory, or hub id")
    add("--model", "--model-path", metavar="MODEL", help="the same")


def model_of(flags: argparse.Namespace) -> str | None:
    """Return the model; ValueError for two, unless one is from --config, which is overridden."""
    first, second = flags.model_positional, flags.model
    if first and second and first != second and not getattr(flags, "config", None):
        raise ValueError(f"two models are named: {first} and --model {second}")
    return first or second


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """Add the groups for hub ids and the tokenizer."""
    add_hub_flags(parser)
    add_tokenizer_flags(parser)


def add_tokenizer_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group."""
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
    """Read the sources; ValueError for a revision of a source that has none."""
    if flags.revision and not model:
        raise ValueError("--revision belongs to a hub id; --demo has no revisions")
    draft = speculation.draft
    return PairSources(
        source_of(flags, model, flags.revision) if model else None,
        source_of(flags, draft, speculation.revision) if draft else None,
        tokenizer_source(flags),
    )


def tokenizer_source(flags: argparse.Namespace) -> Source | None:
    """Return the requested tokenizer's source; ValueError for a revision without one."""
    if flags.tokenizer:
        return source_of(flags, flags.tokenizer, flags.tokenizer_revision)
    if flags.tokenizer_revision:
        raise ValueError("--tokenizer-revision belongs to --tokenizer; the model's is --revision")
    return None
