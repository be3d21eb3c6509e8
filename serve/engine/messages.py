"""Messages from the event loop to the engine's thread, and the interfaces at both ends."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3_jax.engine import EngineStats, Request, RequestOutput
from eagle3_jax.engine.programs.executor import Progress


class EngineLike(Protocol):
    """What the thread needs of an engine (`eagle3_jax.engine.Engine`)."""

    @property
    def has_work(self) -> bool: ...
    @property
    def started(self) -> Sequence[str]: ...
    def warmup(self, progress: Progress | None = None) -> None: ...
    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> list[RequestOutput]: ...
    def reset_prefix_cache(self) -> bool: ...
    def stats(self) -> EngineStats: ...


class EngineObserver(Protocol):
    """Notified of requests as they pass, for metrics; times are in seconds of one clock."""

    def on_submit(self, request: Request, now: float) -> None: ...
    def on_started(self, request_ids: Sequence[str], now: float) -> None: ...
    def on_outputs(self, outputs: Sequence[RequestOutput], now: float) -> None: ...
    def on_refused(self, request_id: str) -> None: ...
    def on_aborted(self, request_id: str) -> None: ...


@dataclass(frozen=True)
class Add:
    """All of the requests or none."""

    requests: tuple[Request, ...]
    accepted: asyncio.Future[None]


@dataclass(frozen=True)
class Cancel:
    """Requests that nobody waits for."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class Reset:
    """Empty the prefix cache."""

    done: asyncio.Future[bool]


class Stop:
    """Ends the thread."""


def settle(future: asyncio.Future[Any], result: object) -> None:
    """Gives a future its result, or its exception, if nobody has done so or given it up."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
