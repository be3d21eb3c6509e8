"""The thread that owns the engine: takes messages in, steps, and reports to the event loop."""

import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from eagle3_jax.engine import RequestOutput
from eagle3_jax.engine.programs.executor import Progress
from serve.engine.errors import Refused
from serve.engine.messages import Add, Cancel, EngineLike, Reset, Stop, settle

logger = logging.getLogger(__name__)
Post = Callable[..., object]
"""Has the event loop call a function with arguments; from any thread."""


class Reports(Protocol):
    """What the worker says, on the event loop."""

    def on_ready(self) -> None: ...
    def on_step(
        self, started: Sequence[str], began: float, outputs: Sequence[RequestOutput], now: float
    ) -> None: ...
    def fail(self, reason: str) -> None: ...


class EngineWorker:
    """Steps an engine while it has work, until it is stopped or the engine raises.

    clock: seconds. explain: what is behind an error of the engine; called on the thread, may wait.
    """

    def __init__(
        self,
        engine: EngineLike,
        progress: Progress | None,
        clock: Callable[[], float] = time.monotonic,
        explain: Callable[[Exception], Exception] | None = None,
    ) -> None:
        self.inbox: queue.SimpleQueue[Add | Cancel | Reset | Stop] = queue.SimpleQueue()
        self.stats = engine.stats()
        self._engine = engine
        self._progress = progress
        self._clock = clock
        self._explain = explain
        self._step_began: float | None = None
        # A daemon: a compile that is under way can't be interrupted, and must not hold an exit up.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, post: Post, reports: Reports) -> None:
        """Starts warming up, then serves the inbox."""
        self._post, self._reports = post, reports
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def step_seconds(self) -> float:
        """How long the step under way has taken so far; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else self._clock() - began

    def stack(self) -> str:
        """Where the thread is, for the log."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def _run(self) -> None:
        try:
            self._engine.warmup(self._progress)
            self.stats = self._engine.stats()
            self._post(self._reports.on_ready)
            while self._handle_messages():
                if self._engine.has_work:
                    self._step()
        except Exception as error:
            reason = self._explain(error) if self._explain else error
            logger.error("the engine failed: %s", reason, exc_info=reason is error)
            self._post(self._reports.fail, str(reason))

    def _step(self) -> None:
        self._step_began = began = self._clock()
        outputs = self._engine.step()
        self._step_began = None
        self.stats = self._engine.stats()
        self._post(self._reports.on_step, self._engine.started, began, outputs, self._clock())

    def _handle_messages(self) -> bool:
        """Takes in what waits; blocks when there is nothing else to do. False: stop."""
        while True:
            try:
                message = self.inbox.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if isinstance(message, Stop):
                return False
            if isinstance(message, Add):
                self._add(message)
            elif isinstance(message, Reset):
                self._post(settle, message.done, self._engine.reset_prefix_cache())
            else:
                self._cancel_all(message.request_ids)
            self.stats = self._engine.stats()

    def _add(self, message: Add) -> None:
        added: list[str] = []
        try:
            for request in message.requests:
                self._engine.add(request)
                added.append(request.request_id)
        except ValueError as error:
            self._cancel_all(added)
            self._post(settle, message.accepted, Refused(str(error)))
        else:
            self._post(settle, message.accepted, None)

    def _cancel_all(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._engine.cancel(request_id)
