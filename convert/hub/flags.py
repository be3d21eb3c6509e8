"""Flags that locate checkpoints on the hub, under vLLM's names."""

import argparse
from pathlib import Path

from convert.hub.source import Source


def add_hub_flags(parser: argparse.ArgumentParser, *, draft: bool = False) -> None:
    """Add the flags; `draft` adds --draft-revision for commands without another such flag."""
    group = parser.add_argument_group("hub ids (org/name), in the place of any directory")
    group.add_argument(
        "--revision", metavar="REV", help="branch, tag or commit of the model; default: main"
    )
    if draft:
        group.add_argument("--draft-revision", metavar="REV", help="the same of the draft")
    group.add_argument(
        "--download-dir", metavar="DIR", help="keeps what is downloaded; default: HF_HOME's cache"
    )


def source_of(flags: argparse.Namespace, name: str | Path, revision: str | None = None) -> Source:
    """Return the source of a checkpoint, with the cache that the flags name."""
    return Source(name, revision, flags.download_dir)
