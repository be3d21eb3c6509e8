"""The thread that owns the engine: it takes calls, steps, and reports to the event loop."""

import asyncio
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from eagle3_jax.engine import Request, RequestOutput
from eagle3_jax.engine.programs.executor import Progress
from serve.engine.errors import Refused
from serve.engine.messages import EngineLike
from serve.engine.threads import settle

logger = logging.getLogger(__name__)
Post = Callable[..., object]
"""A thread-safe function that calls another function, with arguments, on the event loop."""


class Reports(Protocol):
    """Receiver of the worker's reports, on the event loop."""

    def on_ready(self) -> None: ...
    def on_step(
        self, started: Sequence[str], began: float, outputs: Sequence[RequestOutput], now: float
    ) -> None: ...
    def on_failed(self, worker: "EngineWorker", reason: str) -> None: ...


class EngineWorker:
    """A thread that steps an engine while it has work, until it is stopped or the engine raises.

    The thread calls each function in `inbox` between two steps; None ends it. `explain` returns the
    cause of an engine error, and may block. The functions in `between_steps` are called after each
    step and call, and must not block. All run on the thread.
    """

    def __init__(
        self,
        engine: EngineLike,
        progress: Progress | None,
        explain: Callable[[Exception], Exception] | None,
        between_steps: Sequence[Callable[[], object]],
    ) -> None:
        self.inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.stats = engine.stats()
        self._engine = engine
        self._progress = progress
        self._explain = explain
        self._between_steps = between_steps
        self._step_began: float | None = None
        # A daemon, because a running compilation cannot be interrupted and must not delay an exit.
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, post: Post, reports: Reports) -> None:
        """Start warming up, then serve the inbox."""
        self._post, self._reports = post, reports
        self.thread.start()

    @property
    def step_seconds(self) -> float:
        """Duration of the current step so far; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def stack(self) -> str:
        """Return the thread's stack, for the log."""
        frame = sys._current_frames().get(self.thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _run(self) -> None:
        try:
            self._engine.warmup(self._progress)
            self.stats = self._engine.stats()
            self._post(self._reports.on_ready)
            while self._do_calls():
                if self._engine.has_work:
                    self._step()
        except Exception as error:
            reason = self._explain(error) if self._explain else error
            logger.error("the engine failed: %s", reason, exc_info=reason is error)
            self._post(self._reports.on_failed, self, str(reason))

    def _step(self) -> None:
        self._step_began = began = time.monotonic()
        outputs = self._engine.step()
        self._step_began = None
        self._note()
        self._post(self._reports.on_step, self._engine.started, began, outputs, time.monotonic())

    def _do_calls(self) -> bool:
        """Run waiting calls, blocking if there is no other work; return False to stop."""
        while True:
            try:
                call = self.inbox.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if call is None:
                return False
            call()
            self._note()

    def _note(self) -> None:
        self.stats = self._engine.stats()
        for call in self._between_steps:
            call()

    def add(self, requests: Sequence[Request], accepted: asyncio.Future[None]) -> None:
        """Add all requests or none; runs on the thread, like the methods below."""
        added: list[str] = []
        try:
            for request in requests:
                self._engine.add(request)
                added.append(request.request_id)
        except ValueError as error:
            self.cancel(added)
            self._post(settle, accepted, Refused(str(error)))
        else:
            self._post(settle, accepted, None)

    def cancel(self, request_ids: Iterable[str]) -> None:
        """Cancel requests."""
        for request_id in request_ids:
            self._engine.cancel(request_id)

    def reset_prefix_cache(self, done: asyncio.Future[bool]) -> None:
        """Empty the prefix cache, if the engine can do so now."""
        self._post(settle, done, self._engine.reset_prefix_cache())
