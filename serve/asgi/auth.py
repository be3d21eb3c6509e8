"""API key authentication in constant time, and the client of each request."""

import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, ip_network

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.asgi.errors import ApiError, as_response, below_root
from serve.asgi.known_hosts import plain_address

OPEN_PATHS = frozenset(("/health", "/ping", "/metrics", "/version", "/load", "/docs"))
OPEN_PATHS |= {"/openapi.json", "/", "/health_generate"}
OPEN_FOLDER = "/page/"
"""Paths below /page/ need no key, like OPEN_PATHS: probes, metrics, the API description and the
page. All other paths need one."""
IPV6_PREFIX = 64
"""Prefix length in bits that identifies an IPv6 client: one host may use its whole network."""


@dataclass(frozen=True)
class Client:
    """The sender of a request.

    Attributes:
        name: stands for the API key (never the key itself) or, on a server without keys, for the
            network address. Clients share the engine fairly and may abort only their own requests.
        is_admin: whether it may act on the requests of all clients and on the whole server.
        has_key: whether it sent a key of this server.
    """

    name: str = ""
    is_admin: bool = False
    has_key: bool = False


class Authenticate:
    """Middleware that records the client of every request and checks its API key.

    On a server with keys, a request without one gets 401, except for open paths. Only digests of
    the keys are kept. Without an admin key, local clients are admins of a server that has no keys.
    """

    def __init__(self, app: ASGIApp, keys: Collection[str], admin_key: str | None = None) -> None:
        self._app = app
        self._is_guarded, self._has_admin_key = bool(keys), admin_key is not None
        self._known = [
            (_digest(key), Client(f"key {i}", has_key=True)) for i, key in enumerate(keys)
        ]
        if admin_key is not None:
            self._known.append((_digest(admin_key), Client("admin key", True, True)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = _given(Headers(scope=scope))
            client = self.identify(given, (scope.get("client") or ("",))[0])
            if client is None and not is_open(below_root(scope)):
                await as_response(_unauthorized(given), scope)(scope, receive, send)
                return
            scope.setdefault("state", {})["client"] = client or Client()
        await self._app(scope, receive, send)

    def identify(self, given: Sequence[str], address: str) -> Client | None:
        """Return the client of a request, or None if it needs a key and has none.

        Args:
            given: values of the form `Bearer KEY`. An admin key takes precedence.
        """
        found = [client for value in given if (client := self._with_key(value)) is not None]
        if found or self._is_guarded:
            return max(found, key=lambda client: client.is_admin, default=None)
        name, is_local = _network(address)
        return Client(name, is_admin=is_local and not self._has_admin_key)

    def _with_key(self, authorization: str) -> Client | None:
        """Return the client with this key.

        It compares all digests, which have equal length, so that the time reveals nothing.
        """
        scheme, _, key = authorization.partition(" ")
        given, found = _digest(key.strip()), None
        for digest, client in self._known:
            if hmac.compare_digest(given, digest):
                found = client
        return found if scheme.lower() == "bearer" else None


def client_of(request: HTTPConnection) -> Client:
    """Return the client of a request, as recorded by `Authenticate`."""
    return request.scope.get("state", {}).get("client", Client())


def admin_only(request: HTTPConnection) -> None:
    """FastAPI dependency of endpoints that affect all clients: raise 403 unless an admin asks."""
    if not client_of(request).is_admin:
        message = "this endpoint acts on the requests of all clients and expects the admin key, "
        message += "which this request does not have: send the key of --admin-api-key, as "
        message += "`Authorization: Bearer KEY` or `x-api-key: KEY`"
        raise ApiError(403, message, code="admin_key_required")


def _network(address: str) -> tuple[str, bool]:
    """Return the name of the client at an address, and whether it is on this machine."""
    try:
        found = plain_address(address)
    except ValueError:
        return address, False
    if isinstance(found, IPv4Address) or found.is_loopback:
        return str(found), found.is_loopback
    return str(ip_network((found, IPV6_PREFIX), strict=False)), False


def _given(headers: Headers) -> list[str]:
    """Return the `Authorization` header and, in the same form, Anthropic's key header."""
    key = headers.get("x-api-key")
    return [headers.get("authorization", ""), *([] if key is None else [f"Bearer {key}"])]


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def _unauthorized(given: list[str]) -> ApiError:
    message = "the API key is wrong" if any(given) else "an API key is needed"
    message += ": send the header `Authorization: Bearer KEY` or `x-api-key: KEY`"
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, message, code="invalid_api_key", headers=headers)


def key_owner(request: HTTPConnection) -> bytes:
    """Return the digest that identifies the API key of a request.

    On a server with keys this is the accepted key, whatever other headers the request has. On a
    server without keys the digest covers the keys in the headers.
    """
    client, headers = client_of(request), request.headers
    if client.has_key:
        return _digest(client.name)
    key = headers.get("authorization", "").partition(" ")[2].strip()
    return _digest(f"{key}\n{headers.get('x-api-key', '')}")
