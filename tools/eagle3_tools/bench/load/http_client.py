"""HTTP client of all benchmarks, with low overhead because the server may share the machine.

It speaks plain HTTP/1.1 over asyncio streams, with one connection per request like
benchmark_serving.py. Of a response it parses the status, the headers and the lines of the body.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

LIMIT_BYTES = 2**24
"""Most bytes of a line: events with logprobs and error pages are long."""
SHOWN = 300
"""Characters of an error to keep."""


@dataclass(frozen=True)
class Address:
    """A server's address. `path` is the prefix of its endpoints."""

    host: str
    port: int
    tls: bool
    path: str = ""

    @classmethod
    def of(cls, url: str) -> "Address":
        """Parse http://HOST[:PORT][/PATH]; raise ValueError for anything else."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--url must be http://HOST:PORT; got {url!r}")
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, path)


@dataclass
class Response:
    """Status and headers of a response; `begun` is the perf_counter time of its request."""

    begun: float
    status: int
    headers: Mapping[str, str]
    _reader: asyncio.StreamReader = field(repr=False)

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the stripped, non-empty lines of the body as they arrive; call this or `read`,
        once.
        """
        rest = b""
        async for part in self._parts():
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                if line := line.strip():
                    yield line
        if rest := rest.strip():
            yield rest

    async def read(self) -> bytes:
        return b"".join([part async for part in self._parts()])

    async def _parts(self) -> AsyncIterator[bytes]:
        reader = self._reader
        if self.headers.get("transfer-encoding") == "chunked":
            while size := await _chunk_size(reader):
                yield await reader.readexactly(size)
                await reader.readline()
        elif "content-length" in self.headers:
            yield await reader.readexactly(int(self.headers["content-length"]))
        else:
            while part := await reader.read(2**16):
                yield part


@dataclass(frozen=True)
class Reply:
    """A complete response to a request for `path`."""

    path: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body; bytes that are not UTF-8 are replaced."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """Parse the body as JSON; raise OSError if the status is not 200."""
        if self.status != 200:
            raise OSError(f"{self.path} answered {self.status}: {self.text[:SHOWN]}")
        return json.loads(self.body)


async def request(address: Address, method: str, path: str, body: Any = None) -> Reply:
    """Send a request as `exchange` does and read the whole reply."""
    async with exchange(address, method, path, body) as response:
        return Reply(path, response.status, response.headers, await response.read())


@asynccontextmanager
async def exchange(
    address: Address, method: str, path: str, body: Any = None
) -> AsyncIterator[Response]:
    """Send `body` as JSON with the key of OPENAI_API_KEY; the connection closes with the context.

    Raises OSError if sending fails or the answer is not HTTP.
    """
    host = f"[{address.host}]" if ":" in address.host else address.host
    sent, key = b"" if body is None else json.dumps(body).encode(), os.environ.get("OPENAI_API_KEY")
    fields = {
        "Host": f"{host}:{address.port}",
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": f"{len(sent)}",
        **({"Authorization": f"Bearer {key}"} if key else {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=address.tls or None, limit=LIMIT_BYTES
    )
    try:
        writer.write(f"{method} {address.path}{path} HTTP/1.1\r\n{head}\r\n".encode() + sent)
        await writer.drain()
        yield await _read_head(begun, reader)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _chunk_size(reader: asyncio.StreamReader) -> int:
    if not (line := await reader.readline()):
        raise EOFError("the connection ended within the answer")
    return int(line.split(b";")[0], 16)


async def _read_head(begun: float, reader: asyncio.StreamReader) -> Response:
    status_line = await reader.readline()
    if not status_line.startswith(b"HTTP/1."):
        raise OSError(f"the server answered {status_line[:40]!r}, which is not HTTP/1.1")
    headers = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return Response(begun, int(status_line.split()[1]), headers, reader)
