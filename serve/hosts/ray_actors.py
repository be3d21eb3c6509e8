"""What the driver starts on hosts: a process of the engine on each, and who keeps last words."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
from ray.exceptions import RayError  # pyright: ignore[reportMissingImports]
from ray.util import get_node_ip_address  # pyright: ignore[reportMissingImports]

from serve.pair.notices import Say

TELL_S = 2.0
Main = Callable[[Sequence[str], Say], int]
"""The command eagle3-serve, and who hears what its process says of its peers."""


class LastWords:
    """What processes said before they ended, as an actor on the driver's host: Ray knows that a
    process is dead, not whether it was the first, or left because another one was lost."""

    def __init__(self) -> None:
        self._said: list[tuple[int, str]] = []

    def add(self, process: int, reason: str) -> None:
        """Keeps it for the driver."""
        self._said.append((process, reason))

    def take(self) -> list[tuple[int, str]]:
        """Process and reason of what has come since."""
        said, self._said = self._said, []
        return said


class Host:
    """A process of the engine, as an actor on its host."""

    def where(self) -> tuple[str, int]:
        """The host's address, and the process there."""
        return get_node_ip_address(), os.getpid()

    def serve(self, main: Main, argv: list[str], key: str, start: "Start") -> int:
        """Runs eagle3-serve until the process ends, or returns its status where it can't start.

        key: hexadecimal digits, as in a file of --hosts-key-file.
        """

        def overhear(line: str) -> None:
            if reason := line.partition("error: ")[2]:
                with suppress(RayError):  # The driver is gone; so will be this process.
                    ray.get(start.words.add.remote(start.process, reason), timeout=TELL_S)

        with suppress(OSError):  # It may be of the driver's host alone.
            os.chdir(start.directory)
        return main([*argv, "--hosts-key-file", _nameless_file(key)], overhear)


@dataclass(frozen=True)
class Start:
    """What a process is told besides its flags. words: a LastWords."""

    process: int
    directory: str
    words: Any


def _nameless_file(content: str) -> str:
    """The path, in this process alone, of a file of mode 0600 that goes when it ends."""
    file = os.memfd_create("key")
    os.fchmod(file, 0o600)
    os.write(file, content.encode())
    return f"/proc/self/fd/{file}"
