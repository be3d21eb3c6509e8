"""Name a checkpoint by a directory or a Hugging Face hub id, also in flags."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from convert.command_line.options import add_options, option

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""Form of a hub id, `org/name`."""


@dataclass(frozen=True)
class Source:
    """A checkpoint by name; an existing directory takes precedence over a hub id.

    `revision` is a branch, tag or commit, None for the main branch. `cache` is the directory for
    downloads, None for the hub library's own (HF_HOME).
    """

    name: str | Path
    revision: str | None = None
    cache: str | None = None

    def __str__(self) -> str:
        return f"{self.name}" + (f" ({self.revision})" if self.revision else "")

    @property
    def last_name(self) -> str:
        """Last component of the path or id."""
        return Path(self.name).name

    @property
    def here(self) -> Path | None:
        """The local directory, None for a hub id; FileNotFoundError if it is neither."""
        path = Path(self.name)
        if path.is_dir():
            return path
        if path.exists():
            raise FileNotFoundError(
                f"{self.name} is a file; a checkpoint directory or a hub id (org/name) was expected"
            )
        if not ID.fullmatch(str(self.name)):
            raise FileNotFoundError(
                f"{self.name} does not exist; a directory or a hub id (org/name) was expected"
            )
        return None


@dataclass(frozen=True)
class HubFlags:
    """Revisions of hub ids, and the cache of downloads."""

    revision: str | None = option(
        "--revision REV", "branch, tag or commit of the model; default: main"
    )
    draft_revision: str | None = option("--draft-revision REV", "the same of the draft")
    download_dir: str | None = option(
        "--download-dir DIR", "directory that keeps downloads; default: HF_HOME's cache"
    )


def add_hub_flags(parser: argparse.ArgumentParser, *, draft: bool = False) -> None:
    """Add the options; `draft` adds --draft-revision for commands without another such option."""
    group = parser.add_argument_group("hub ids (org/name), in the place of any directory")
    revisions = ("revision", "draft_revision") if draft else ("revision",)
    add_options(group, HubFlags, *revisions, "download_dir")


def source_of(flags: argparse.Namespace, name: str | Path, revision: str | None = None) -> Source:
    """Return the source of a checkpoint, with the cache that the flags name."""
    return Source(name, revision, flags.download_dir)
