"""Name a checkpoint by a directory or a Hugging Face hub id."""

import re
from dataclasses import dataclass
from pathlib import Path

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
