"""Where the parts of a walk run: a folder, a time limit, commands and a server."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3_tools.bench.load.http_client import Address, exchange, request
from eagle3_tools.bench.load.server_process import serving

COMMANDS = {
    "eagle3-generate": "serve.generate.cli",
    "eagle3-convert": "convert.conversion.cli",
    "eagle3-quantize": "convert.quantize.cli",
    "eagle3-train": "serve.train.cli",
}
_RUN = "import sys; from {module} import main; sys.exit(main())"
_SHOWN = 12
"""Last lines of a log that an error shows."""
SMALL = ("--max-model-len", "192", "--num-gpu-blocks-override", "26")
"""Sizes for few and small programs."""


@dataclass
class Place:
    """One part's surroundings; `folder` is the walk's. `url` is that of the part's server.

    The limit counts from the part's start, or from the server's if it is the server's first part.
    """

    folder: Path
    limit_s: float
    url: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Return the seconds left; raise TimeoutError if there are none."""
        left = self.started + self.limit_s - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"took longer than {self.limit_s:g} s")
        return left

    def run(self, command: str, *flags: str | Path, **environment: str) -> str:
        """Run a command of ours and return its standard output.

        Raises OSError with the last lines of its log if it fails, TimeoutError at the limit.
        """
        module = COMMANDS.get(command)
        code = ["-m", command] if module is None else ["-c", _RUN.format(module=module)]
        try:
            done = subprocess.run(
                [sys.executable, "-P", *code, *map(str, flags)],
                capture_output=True,
                text=True,
                timeout=self.left_s,
                env=os.environ | self._caches() | environment,
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{command} took longer than {self.limit_s:g} s") from error
        if done.returncode:
            raise OSError(f"{command} ended with status {done.returncode}: {_last(done.stderr)}")
        return done.stdout

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send one request to the server and return its answer's JSON."""
        (answer,) = self.together([(path, body)])
        return answer

    def together(self, bodies: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Any]:
        """Send requests at once; return the JSON of each answer, in order."""

        async def send() -> list[Any]:
            address = Address.of(self.url)
            replies = (request(address, "POST", path, body) for path, body in bodies)
            return [reply.json() for reply in await asyncio.gather(*replies)]

        return self._within(send())

    def metrics(self) -> str:
        address = Address.of(self.url)
        return self._within(request(address, "GET", "/metrics")).text

    def leave_after(self, lines: int, path: str, body: Mapping[str, Any]) -> int:
        """Close the connection of a streamed answer after some lines; return how many came."""

        async def read() -> int:
            seen = 0
            async with exchange(Address.of(self.url), "POST", path, body) as response:
                async for _ in response.lines():
                    seen += 1
                    if seen == lines:
                        break
            return seen

        return self._within(read())

    @contextmanager
    def served(self, flags: Sequence[str]) -> Iterator["Place"]:
        """Run eagle3-serve and yield a place with its URL; it must end with status 0.

        Raises OSError with the last lines of its log if it does not.
        """
        log = self.folder / "server.log"
        try:
            with serving(flags, log, self.left_s, self._caches()) as (process, url):
                yield replace(self, url=url)
        except OSError as error:
            raise OSError(f"{error}: {_last(log.read_text(errors='replace'))}") from error
        if process.returncode:
            said = _last(log.read_text(errors="replace"))
            raise OSError(f"the server ended with status {process.returncode}: {said}")

    def compiled(self) -> set[str]:
        """Return the names of the programs in the walk's persistent cache."""
        folder = self.folder / "programs"
        return {path.name for path in folder.rglob("*-cache")}

    def _caches(self) -> dict[str, str]:
        """Keep every program, so that a second start can be seen to compile none."""
        return {
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def _within(self, work: Awaitable[Any]) -> Any:
        async def limited() -> Any:
            return await asyncio.wait_for(work, self.left_s)

        try:
            return asyncio.run(limited())
        except TimeoutError:
            raise TimeoutError(f"no answer within {self.limit_s:g} s") from None


def answers_of(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def _last(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_SHOWN:])
