"""Behind a proxy that serves several things, each under a path: /llm/v1/models is /v1/models."""

from starlette.types import ASGIApp, Receive, Scope, Send


class UnderRoot:
    """Serves the application under a path, which the proxy may take off or leave on."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
        await self._app({**scope, "root_path": self._root_path}, receive, send)


def below_root(scope: Scope) -> str:
    """The path without the root, as routes are found."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if path.startswith(f"{root}/") else path
