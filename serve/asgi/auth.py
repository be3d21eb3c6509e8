"""Authentication by API keys, compared in constant time, and the client of each request."""

import hmac
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, ip_network

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.asgi.errors import ApiError, as_response
from serve.asgi.known_hosts import plain_address
from serve.asgi.root_path import below_root

OPEN_PATHS = frozenset(("/health", "/ping", "/metrics", "/version", "/load", "/docs"))
OPEN_PATHS |= {"/openapi.json", "/", "/health_generate"}
OPEN_FOLDER = "/page/"
"""Probes, collectors, the description of the API and the page; everything else is the model's."""
IPV6_PREFIX = 64
"""Bits of an IPv6 address that name a client: one host may use every address of its network."""


@dataclass(frozen=True)
class Client:
    """The sender of a request.

    name: stands for the API key (never the key itself) or, on a server without keys, for the
    network address. Clients share the engine fairly and abort their own requests alone.
    is_admin: whether it may act on the requests of all clients and on the whole server.
    has_key: whether it sent a key of this server.
    """

    name: str = ""
    is_admin: bool = False
    has_key: bool = False


class Authenticate:
    """Notes the client of every request. Answers 401 to a request without a key on a server that
    has keys, but for the open paths. Keeps only the digests of keys.

    Without an admin key, clients on this machine are admins of a server that has no keys.
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
        """Serves one request (ASGI)."""
        if scope["type"] == "http":
            given = _given(Headers(scope=scope))
            client = self.identify(given, (scope.get("client") or ("",))[0])
            if client is None and not is_open(below_root(scope)):
                await as_response(_unauthorized(given), scope)(scope, receive, send)
                return
            scope.setdefault("state", {})["client"] = client or Client()
        await self._app(scope, receive, send)

    def identify(self, given: Sequence[str], address: str) -> Client | None:
        """Return the client of a request, None where it needs a key and has none.

        given: values of the form `Bearer KEY`. An admin key goes before others.
        """
        found = [client for value in given if (client := self._with_key(value)) is not None]
        if found or self._is_guarded:
            return max(found, key=lambda client: client.is_admin, default=None)
        name, is_local = _network(address)
        return Client(name, is_admin=is_local and not self._has_admin_key)

    def _with_key(self, authorization: str) -> Client | None:
        """Return the client with this key.

        Digests of one length are compared, all of them, so that the time says nothing about them.
        """
        scheme, _, key = authorization.partition(" ")
        given, found = _digest(key.strip()), None
        for digest, client in self._known:
            if hmac.compare_digest(given, digest):
                found = client
        return found if scheme.lower() == "bearer" else None


def client_of(request: HTTPConnection) -> Client:
    """Return the client of a request, as `Authenticate` has noted it."""
    return request.scope.get("state", {}).get("client", Client())


def admin_only(request: HTTPConnection) -> None:
    """Raise 403 unless an admin sent the request. A dependency of endpoints that act on more than
    the requests of their client."""
    if not client_of(request).is_admin:
        message = "this endpoint acts on the requests of all clients and expects the admin key, "
        message += "which this request does not have: send the key of --admin-api-key, as "
        message += "`Authorization: Bearer KEY` or `x-api-key: KEY`"
        raise ApiError(403, message, code="admin_key_required")


def _network(address: str) -> tuple[str, bool]:
    """Return the name of the client at an address, and whether that is on this machine."""
    try:
        found = plain_address(address)
    except ValueError:
        return address, False
    if isinstance(found, IPv4Address) or found.is_loopback:
        return str(found), found.is_loopback
    return str(ip_network((found, IPV6_PREFIX), strict=False)), False


def _given(headers: Headers) -> list[str]:
    """What stands for `Authorization`: it itself, and Anthropic's header for a key."""
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

    On a server with keys this is the key that was accepted, whatever other headers the request
    has. On a server without keys it covers what the headers show.
    """
    client, headers = client_of(request), request.headers
    if client.has_key:
        return _digest(client.name)
    key = headers.get("authorization", "").partition(" ")[2].strip()
    return _digest(f"{key}\n{headers.get('x-api-key', '')}")
