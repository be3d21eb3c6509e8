"""One thread owns the engine; the event loop talks to it through messages.

The engine is not thread-safe and its steps block, so nothing else touches it: requests and
cancellations go in through a queue, outputs come back as calls on the event loop. Everything
public here is for the event loop.
"""

import asyncio
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from eagle3_jax.engine import BARS_EVERY_TOKEN, GRAMMAR_FAILED, Request, RequestOutput
from eagle3_jax.engine.executor import Progress
from serve.engine_messages import Add, Cancel, EngineLike, Observer, Reset, Stop
from serve.errors import ApiError, invalid_request, queue_full, shutting_down, unavailable
from serve.output_stream import OutputStream

logger = logging.getLogger(__name__)
STOP_POLL_S = 0.01


class EngineThread:
    """Runs an engine until it is stopped or dies, and hands its outputs to the event loop."""

    def __init__(
        self,
        engine: EngineLike,
        observer: Observer,
        *,
        max_queued: int = 4096,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        explain: Callable[[Exception], Exception] | None = None,
    ) -> None:
        """max_queued: sequences that may run and wait at a time. explain: what is behind an error
        of the engine; called on the thread, may wait."""
        self.state: Literal["starting", "ready", "draining", "ending", "dead"] = "starting"
        self.stats = engine.stats()
        self.ready = asyncio.Event()
        self.dead = asyncio.Event()
        self._engine = engine
        self._max_queued = max_queued
        self._observer = observer
        self._progress = progress
        self._clock = clock
        self._explain = explain
        self._inbox: queue.SimpleQueue[Add | Cancel | Reset | Stop] = queue.SimpleQueue()
        self._streams: dict[str, OutputStream] = {}
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._step_began: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        # A daemon: a compile that is under way can't be interrupted, and must not hold an exit up.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts warming up; `ready` is set when requests are served, `dead` if they can't be."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def submit(self, requests: Sequence[Request]) -> OutputStream:
        """Adds all requests or none; raises ApiError with the engine's reason for a refusal."""
        self.check_room(len(requests))
        stream = OutputStream([request.request_id for request in requests])
        now = self._clock()
        for request in requests:
            self._streams[request.request_id] = stream
            self._observer.on_submit(request, now)
        self._idle.clear()
        accepted = self._answer()
        self._inbox.put(Add(tuple(requests), accepted))
        try:
            await accepted
        except asyncio.CancelledError:
            self.cancel(stream)
            raise
        except ApiError:
            self._forget(stream)
            raise
        return stream

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def check_admitting(self) -> None:
        """Raises the ApiError that says why no request that arrives now is taken, if none is."""
        if self.state == "draining":
            raise shutting_down()
        self._check_running()

    def _check_running(self) -> None:
        """The same for requests that have arrived before."""
        if self.state == "starting":
            raise unavailable("the server is still starting", retry_after_s=5)
        if self.state == "ending":
            raise shutting_down()
        if self.state == "dead":
            raise unavailable("the engine has stopped; the server must be restarted")

    def check_room(self, count: int) -> None:
        """Raises ApiError when `count` more sequences of a request that has arrived are not taken
        now, or never will be."""
        self._check_running()
        if count > self._max_queued:
            raise invalid_request(
                f"the request asks for {count} sequences; this server takes {self._max_queued} "
                "at a time (--max-num-queued-reqs)"
            )
        if len(self._streams) + count > self._max_queued:
            raise queue_full(self._max_queued, retry_after_s=1)

    @property
    def step_seconds(self) -> float:
        """How long the step under way has taken so far; 0 between steps."""
        began = self._step_began
        return 0.0 if began is None else self._clock() - began

    def stack(self) -> str:
        """Where the thread is, for the log."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else ""

    def fail(self, reason: str) -> None:
        """Declares the engine dead: every request under way fails, no other is taken."""
        if self.state == "dead":
            return
        self.state = "dead"
        failure = ApiError(503, f"the engine failed: {reason}", code="engine_failed")
        for answer in self._unanswered:
            _settle(answer, failure)
        for stream in set(self._streams.values()):
            stream.fail(failure)
        for request_id in self._streams:
            self._observer.on_aborted(request_id)
        self._streams.clear()
        self.dead.set()
        self._note_idle()

    def fail_soon(self, reason: str) -> None:
        """The same, from any thread."""
        self._post(self.fail, reason)

    def cancel(self, stream: OutputStream) -> None:
        """Gives up what `stream` still waits for; without effect once it has finished."""
        waiting = tuple(id for id in stream.unfinished if self._streams.pop(id, None))
        if waiting:
            self._inbox.put(Cancel(waiting))
            for request_id in waiting:
                self._observer.on_aborted(request_id)
        self._note_idle()

    async def reset_prefix_cache(self) -> bool:
        """Empties the prefix cache; False, and nothing happens, while the engine has requests."""
        self.check_admitting()
        done = self._answer()
        self._inbox.put(Reset(done))
        return await done

    def stop_admitting(self) -> None:
        """Is no longer healthy. Whoever calls refuses requests that arrive from now on; those that
        have arrived go on."""
        if self.state in ("starting", "ready"):
            self.state = "ending" if self.state == "starting" else "draining"

    async def idle(self) -> None:
        """Returns when no request is under way."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """Finishes every sequence with reason "abort", and takes no other."""
        if self.state != "dead":
            self.state = "ending"
        for stream in set(self._streams.values()):
            ids = tuple(stream.unfinished)
            self.cancel(stream)
            for request_id in ids:
                stream.push(_aborted(request_id))

    async def stop(self, timeout_s: float) -> None:
        """Ends the thread, or leaves it when it is still busy after `timeout_s` (see `alive`)."""
        self._inbox.put(Stop())
        deadline = time.monotonic() + timeout_s
        while self.alive and time.monotonic() < deadline:
            await asyncio.sleep(STOP_POLL_S)

    # On the event loop, called by the thread.

    def _on_ready(self) -> None:
        if self.state == "starting":
            self.state = "ready"
        if self.state != "dead":
            self.ready.set()

    def _on_step(
        self, started: Sequence[str], began: float, outputs: Sequence[RequestOutput], now: float
    ) -> None:
        self._observer.on_started([id for id in started if id in self._streams], began)
        known = [output for output in outputs if output.request_id in self._streams]
        self._observer.on_outputs(known, now)
        for output in known:
            stream = self._streams[output.request_id]
            if output.finish_reason is not None:
                del self._streams[output.request_id]
            if output.finish_reason == "error":
                own = f"{output.stop_reason}".startswith((BARS_EVERY_TOKEN, GRAMMAR_FAILED))
                status = 400 if own else 500
                stream.fail(ApiError(status, f"{output.stop_reason}", code="generation_failed"))
            else:
                stream.push(output)
        self._note_idle()

    def _answer(self) -> asyncio.Future[Any]:
        """What the thread will settle, or the engine's death."""
        answer = self._loop.create_future()
        self._unanswered.add(answer)
        answer.add_done_callback(self._unanswered.discard)
        return answer

    def _forget(self, stream: OutputStream) -> None:
        for request_id in stream.unfinished:
            if self._streams.pop(request_id, None):
                self._observer.on_refused(request_id)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self._streams:
            self._idle.set()

    # On the thread.

    def _run(self) -> None:
        try:
            self._engine.warmup(self._progress)
            self.stats = self._engine.stats()
            self._post(self._on_ready)
            while self._handle_messages():
                if self._engine.has_work:
                    self._step_began = began = self._clock()
                    outputs = self._engine.step()
                    self._step_began = None
                    self.stats = self._engine.stats()
                    self._post(self._on_step, self._engine.started, began, outputs, self._clock())
        except Exception as error:
            reason = self._explain(error) if self._explain else error
            logger.error("the engine failed: %s", reason, exc_info=reason is error)
            self.fail_soon(str(reason))

    def _handle_messages(self) -> bool:
        """Takes in what waits; blocks when there is nothing else to do. False: stop."""
        while True:
            try:
                message = self._inbox.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if isinstance(message, Stop):
                return False
            if isinstance(message, Add):
                self._add(message)
            elif isinstance(message, Reset):
                self._post(_settle, message.done, self._engine.reset_prefix_cache())
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
            self._post(_settle, message.accepted, invalid_request(str(error)))
        else:
            self._post(_settle, message.accepted, None)

    def _cancel_all(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._engine.cancel(request_id)

    def _post(self, call: Callable[..., None], *args: object) -> None:
        self._loop.call_soon_threadsafe(call, *args)


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _aborted(request_id: str) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        token_ids=(),
        text="",
        finish_reason="abort",
        stop_reason=None,
        rounds=(),
        prompt_tokens=0,
        seed=0,
    )
