"""Support for a proxy with a path prefix: /llm/v1/models is then /v1/models."""

from starlette.types import ASGIApp, Receive, Scope, Send


class UnderRoot:
    """Middleware for an application below a path prefix, which the proxy may strip or keep."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "root_path": self._root_path}, receive, send)


def below_root(scope: Scope) -> str:
    """Return the path without the root path, as the router sees it."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if path.startswith(f"{root}/") else path
