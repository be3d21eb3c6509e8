"""HEAD for every GET endpoint: the same answer without its body, which uvicorn omits."""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """Middleware that passes HEAD to the application as GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}
        await self._app(asked, receive, send)
        scope["route"] = asked.get("route")  # For the record of the request.
