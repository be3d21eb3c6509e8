"""HTTP connections that don't wait for ever for a client."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def timed_connection(timeout_s: float) -> type[H11Protocol]:
    """uvicorn's connection, closed when the head of a request takes longer than `timeout_s` to
    arrive, or the client reads nothing of its answer for as long.

    uvicorn itself waits for both as long as the connection lives.
    """

    class TimedConnection(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None
        _stall_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._time_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._time_head()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stall_timer = self.loop.call_later(timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stall_timer = _stop(self._stall_timer)

        def connection_lost(self, exc: Exception | None) -> None:
            self._head_timer = _stop(self._head_timer)
            self._stall_timer = _stop(self._stall_timer)
            super().connection_lost(exc)

        def _time_head(self) -> None:
            """Between requests uvicorn's keep-alive has its own time; this one begins with data."""
            if self.conn.their_state is not h11.IDLE:
                self._head_timer = _stop(self._head_timer)
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(timeout_s, self.transport.abort)

    return TimedConnection


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
