"""Authentication by API keys, compared in constant time."""

import hmac
from collections.abc import Collection
from hashlib import sha256

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.asgi.errors import ApiError, as_response
from serve.asgi.root_path import below_root

OPEN_PATHS = frozenset(("/health", "/ping", "/metrics", "/version", "/load", "/docs"))
OPEN_PATHS |= {"/openapi.json", "/", "/health_generate"}
OPEN_FOLDER = "/page/"
"""Probes, collectors, the description of the API and the page; everything else is the model's."""
ACCEPTED = "accepted_key"
"""The entry of a request's state that holds the digest of its accepted key."""


class RequireKey:
    """Answers 401 to requests without a key, but for the open paths. Only the keys' digests are
    kept."""

    def __init__(self, app: ASGIApp, keys: Collection[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
        if scope["type"] == "http" and not is_open(below_root(scope)):
            given = _given(Headers(scope=scope))
            accepted = next(filter(self.accepts, given), None)
            if accepted is None:
                await as_response(_unauthorized(given), scope)(scope, receive, send)
                return
            scope.setdefault("state", {})[ACCEPTED] = _digest(accepted.partition(" ")[2].strip())
        await self._app(scope, receive, send)

    def accepts(self, authorization: str) -> bool:
        """Whether the header's value is `Bearer KEY` with one of the keys.

        Digests of one length are compared, all of them, so that the time says nothing about them.
        """
        scheme, _, key = authorization.partition(" ")
        given, found = _digest(key.strip()), False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found and scheme.lower() == "bearer"


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
    accepted = request.scope.get("state", {}).get(ACCEPTED)
    if accepted is not None:
        return accepted
    headers = request.headers
    key = headers.get("authorization", "").partition(" ")[2].strip()
    return _digest(f"{key}\n{headers.get('x-api-key', '')}")
