"""Marks every response made under synthetic acceptance.

The same name everywhere: a header of every response, a field of every generated body and event, a
metric. Without synthetic acceptance none of them is there.
"""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eagle3_jax.engine import EngineStats

HEADER = b"x-synthetic-acceptance-length"


def synthetic_field(stats: EngineStats) -> dict[str, float]:
    """The field of a body; nothing where acceptance is real."""
    length = stats.synthetic_acceptance_length
    return {} if length is None else {"synthetic_acceptance_length": length}


class SyntheticHeader:
    """Adds the header to every response, errors included."""

    def __init__(self, app: ASGIApp, read: Callable[[], EngineStats]) -> None:
        self._app = app
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request (ASGI)."""
        length = self._read().synthetic_acceptance_length
        if length is None or scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, b"%g" % length)]
            await send(message)

        await self._app(scope, receive, send_with_header)
