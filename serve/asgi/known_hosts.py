"""Refuses requests for other hosts, so that web pages cannot reach a local server.

The DNS name of a page may be rebound to 127.0.0.1. The browser then treats the server as the page's
origin and lets the page read every answer. Only the Host header tells such requests apart.
"""

import re
import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.asgi.errors import ApiError, as_response

ANY = "*"
HOST = re.compile(r"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?")
"""A bracketed IPv6 address, or a name or another address; then an optional port."""


def checks_hosts(
    address: socket.socket | None, api_keys: Collection[str], allowed: Collection[str]
) -> bool:
    """Return whether a server refuses hosts other than the `allowed` ones.

    It does if the user named some, or if the address is loopback and there are no API keys. Pages
    have no key, and a server for other machines cannot know the names by which they reach it.
    `address` is the bound socket, or None if another program listens for the server.
    """
    loopback = address is not None and plain_address(address.getsockname()[0]).is_loopback
    return ANY not in allowed and (bool(allowed) or (loopback and not api_keys))


class KnownHosts:
    """Middleware: 403 unless Host is an address of the server, localhost or one of `names`.

    A name that begins with `*.` matches all names below it. Ports are ignored.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or self._knows(_without_port(host), scope.get("server")):
            await self._app(scope, receive, send)
            return
        message = (
            f"the header Host must name this server: one of its addresses, localhost or a name of "
            f"--allowed-hosts; got {host[:100]!r}"
        )
        error = ApiError(403, message, code="host_not_allowed")
        await as_response(error, scope)(scope, receive, send)

    def _knows(self, host: str, server: tuple[str, int] | None) -> bool:
        above = (f"*.{host.split('.', count)[-1]}" for count in range(1, 1 + host.count(".")))
        if host in self._names or not self._names.isdisjoint(above):
            return True
        try:
            asked = plain_address(host)
            return asked.is_loopback or (server is not None and asked == plain_address(server[0]))
        except ValueError:
            return False


def _without_port(host: str) -> str:
    found = HOST.fullmatch(host.lower())
    return (found[1] or found[2] or "").removesuffix(".") if found else ""


def plain_address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address without its zone. Raises ValueError for text that is not an address.

    IPv4-mapped IPv6 addresses, by which dual-stack sockets name IPv4 peers, become IPv4.
    """
    found = ip_address(text.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found
