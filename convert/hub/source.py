"""What names a checkpoint: a directory, or an id on the Hugging Face hub."""

import re
from dataclasses import dataclass
from pathlib import Path

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
"""`org/name`."""


@dataclass(frozen=True)
class Source:
    """A checkpoint by its name; a directory that is there wins over an id.

    revision: branch, tag or commit of a repository, None for its main branch. cache: the directory
    that keeps what is downloaded, None for the hub library's own (HF_HOME).
    """

    name: str | Path
    revision: str | None = None
    cache: str | None = None

    def __str__(self) -> str:
        return f"{self.name}" + (f" ({self.revision})" if self.revision else "")

    @property
    def last_name(self) -> str:
        """Of its path, or of its id."""
        return Path(self.name).name

    @property
    def here(self) -> Path | None:
        """The directory, if it is one; FileNotFoundError for what is neither one nor an id."""
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
