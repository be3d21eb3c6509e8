"""Asks a server again and again, by one client: each new one reads all certificates, which takes
50 ms of a processor that the server's start needs."""

import httpx

_NO_CONNECTIONS_KEPT = httpx.Limits(max_keepalive_connections=0)
_client = httpx.Client(limits=_NO_CONNECTIONS_KEPT, timeout=10)


def status_of(url: str) -> int | None:
    """Return the status of the answer, None without one."""
    try:
        return _client.get(url).status_code
    except httpx.TransportError:
        return None


def text_of(url: str) -> str:
    return _client.get(url).text
