"""A third-party client: how to install and call it, and how to read its result file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Server:
    """A running eagle3-serve: its address, the model's name there and a copy of its tokenizer."""

    url: str
    model: str
    tokenizer: Path


@dataclass(frozen=True)
class Counts:
    """Requests of a run, as its result file has them."""

    completed: int
    failed: int

    @property
    def all_completed(self) -> bool:
        """True when something was asked and nothing failed."""
        return self.completed > 0 and self.failed == 0


@dataclass(frozen=True)
class Client:
    """One client in one mode.

    environment: which of clients.environments it is installed in.
    distribution: the package whose version is reported; for a `version` of its own it is "".
    command: (server, empty directory for results) -> argv; it runs in that directory, and argv[0]
        is a program of the environment.
    read: what the result files in that directory say.
    variables: added to the environment variables of the command.
    """

    name: str
    environment: str
    distribution: str
    command: Callable[[Server, Path], Sequence[str]]
    read: Callable[[Path], Counts]
    variables: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
