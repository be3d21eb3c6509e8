"""What the event loop and the engine's thread say to each other, and to whom they say it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from eagle3_jax.engine import EngineStats, Request, RequestOutput
from eagle3_jax.engine.executor import Progress


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


class Observer(Protocol):
    """What is told about requests as they pass; times are in seconds of one clock."""

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
