"""Wait for what servers do, and ask them by one client: each new one reads all certificates, which
takes 50 ms of a processor that a server's start needs."""

import socket
import time
from collections.abc import Callable

import httpx

_NO_CONNECTIONS_KEPT = httpx.Limits(max_keepalive_connections=0)
_client = httpx.Client(limits=_NO_CONNECTIONS_KEPT, timeout=10)


def status_of(url: str) -> int | None:
    """Return the status of the answer, None without one."""
    try:
        return _client.get(url).status_code
    except httpx.TransportError:
        return None


def wait_for(
    condition: Callable[[], object],
    most_s: float = 5.0,
    explain: Callable[[], object] = lambda: "it did not happen",
    every_s: float = 0.005,
) -> None:
    """Return once the condition holds; fail after so many seconds."""
    deadline = time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(every_s)


def free_port() -> int:
    """Return a port of the loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def text_of(url: str) -> str:
    return _client.get(url).text
