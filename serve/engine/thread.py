"""The engine's interface for the event loop: submit requests, read streams of outputs.

The engine is not thread-safe and its steps block, so one thread owns it (`worker.py`). Requests and
cancellations reach it through a queue; outputs return as calls on the event loop. All functions
here run on the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from eagle3_jax.engine import (
    BARS_EVERY_TOKEN,
    GRAMMAR_FAILED,
    EngineStats,
    Request,
    RequestOutput,
)
from eagle3_jax.engine.programs.executor import Progress
from serve.engine.errors import (
    EngineDead,
    EngineError,
    GenerationFailed,
    QueueFull,
    Refused,
    ShuttingDown,
    Unavailable,
)
from serve.engine.messages import EngineLike, EngineObserver
from serve.engine.stream import OutputStream
from serve.engine.threads import settle
from serve.engine.worker import EngineWorker

logger = logging.getLogger(__name__)

State = Literal["starting", "restarting", "ready", "draining", "ending", "dead"]
STOP_POLL_S = 0.01
LONGEST_LOOK_S = 1.0
LEAST_SHARE = 1 / 8
"""Part of --max-num-queued-reqs that every client may use, however many sequences others have."""


class EngineThread:
    """An engine that runs until it is stopped or dies, with its outputs on the event loop."""

    def __init__(
        self,
        engine: EngineLike,
        observer: EngineObserver,
        *,
        max_queued: int = 4096,
        progress: Progress | None = None,
        explain: Callable[[Exception], Exception] | None = None,
        between_steps: Sequence[Callable[[], object]] = (),
    ) -> None:
        """Create the thread; `max_queued` limits running and waiting sequences.

        On the thread, `explain` returns the cause of an engine error and may block; `between_steps`
        must not block.
        """
        self.state: State = "starting"
        self.on_failure: Callable[[str], object] = self.fail
        """Called with the reason if the engine cannot continue."""
        self.ready = asyncio.Event()
        self.dead = asyncio.Event()
        self._progress, self._between_steps = progress, between_steps
        self._worker = EngineWorker(engine, progress, explain, between_steps)
        self._max_queued = max_queued
        self._observer = observer
        self._streams: dict[str, OutputStream] = {}
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Start the warm-up; sets `ready` when requests can be served, or `dead` if they cannot."""
        self._loop = asyncio.get_running_loop()
        self._worker.start(self._loop.call_soon_threadsafe, self)

    async def submit(self, requests: Sequence[Request], client: str = "") -> OutputStream:
        """Add all requests of a client or none; raises Refused with the engine's reason."""
        self.check_room(len(requests), client)
        stream = OutputStream([request.request_id for request in requests], client)
        requests = [replace(request, client=client) for request in requests]
        now = time.monotonic()
        for request in requests:
            self._streams[request.request_id] = stream
            self._observer.on_submit(request, now)
        self._idle.clear()
        accepted = self._answer()
        self._worker.inbox.put(partial(self._worker.add, requests, accepted))
        try:
            await accepted
        except asyncio.CancelledError:
            self.cancel(stream)
            raise
        except EngineError:
            self._forget(stream)
            raise
        return stream

    def run_soon(self, call: Callable[[], object]) -> None:
        """Call a function on the engine's thread between two steps; callable from any thread."""
        self._worker.inbox.put(call)

    @property
    def stats(self) -> EngineStats:
        """The engine's statistics as of its latest step."""
        return self._worker.stats

    def check_admitting(self) -> None:
        """Raise the EngineError of new requests, if none are admitted now."""
        if self.state == "draining":
            raise ShuttingDown
        self._check_running()

    def _check_running(self) -> None:
        """Raise the EngineError of requests that have arrived before, if they cannot run."""
        if self.state == "starting":
            raise Unavailable("the server is still starting", retry_after_s=5)
        if self.state == "restarting":
            raise Unavailable("the engine has failed and is being started again", retry_after_s=5)
        if self.state == "ending":
            raise ShuttingDown
        if self.state == "dead":
            raise Unavailable("the engine has stopped; the server must be restarted")

    def check_room(self, count: int, client: str = "") -> None:
        """Raise EngineError if `count` more sequences are not accepted now, or never.

        A client may use LEAST_SHARE of the limit however many sequences other clients have, while
        all of them together are below twice the limit.
        """
        self._check_running()
        if count > self._max_queued:
            raise Refused(
                f"the request asks for {count} sequences; this server takes {self._max_queued} "
                "at a time (--max-num-queued-reqs)"
            )
        if (total := len(self._streams) + count) > self._max_queued:
            own = count + sum(stream.client == client for stream in self._streams.values())
            share = max(1, int(LEAST_SHARE * self._max_queued))
            if own > share or total > 2 * self._max_queued:
                raise QueueFull(self._max_queued)

    async def watch(self, timeout_s: float) -> None:
        """Declare the engine dead if a step exceeds the timeout; a supervisor then restarts it."""
        while self.state != "dead":
            await asyncio.sleep(min(timeout_s / 4, LONGEST_LOOK_S))
            if self._worker.step_seconds > timeout_s:
                reason = f"a step took longer than {timeout_s:g} seconds (--watchdog-timeout)"
                logger.error("%s; the engine is at\n%s", reason, self._worker.stack())
                self.on_failure(reason)

    def fail(self, reason: str) -> None:
        """Declare the engine dead: running requests fail, and new ones are refused."""
        if self.state == "dead":
            return
        self.state = "dead"
        self._fail_all(reason)
        self.dead.set()

    def interrupt(self, reason: str) -> None:
        """Fail running requests, and ask new ones to retry, until `resume`."""
        self.state = "restarting"
        self.ready.clear()
        self._fail_all(reason)

    def resume(self, engine: EngineLike, explain: Callable[[Exception], Exception]) -> None:
        """Start warming up the successor of an interrupted engine."""
        self._worker = EngineWorker(engine, self._progress, explain, self._between_steps)
        self.start()

    def _fail_all(self, reason: str) -> None:
        failure = EngineDead(reason)
        for answer in self._unanswered:
            settle(answer, failure)
        for stream in set(self._streams.values()):
            stream.fail(failure)
        for request_id in self._streams:
            self._observer.on_aborted(request_id)
        self._streams.clear()
        self._note_idle()

    def cancel(self, stream: OutputStream) -> None:
        """Cancel the unfinished requests of `stream`; without effect once it has finished."""
        waiting = tuple(id for id in stream.unfinished if self._streams.pop(id, None))
        if waiting:
            self._worker.inbox.put(partial(self._worker.cancel, waiting))
            for request_id in waiting:
                self._observer.on_aborted(request_id)
        self._note_idle()

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; return False, without effect, while the engine has requests."""
        self.check_admitting()
        done = self._answer()
        self._worker.inbox.put(partial(self._worker.reset_prefix_cache, done))
        return await done

    def stop_admitting(self) -> None:
        """Become unhealthy; admitted requests continue, and the caller refuses new ones."""
        if self.state in ("starting", "restarting", "ready"):
            self.state = "draining" if self.state == "ready" else "ending"

    async def idle(self) -> None:
        """Wait until no request is running."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """Finish every sequence with reason "abort", and accept no more."""
        if self.state != "dead":
            self.state = "ending"
        self.abort(lambda _: True)

    def abort(self, meant: Callable[[str], bool], client: str | None = None) -> None:
        """Finish with "abort" the client's sequences whose id is `meant`; None: all clients'."""
        found = {i: s for i, s in self._streams.items() if meant(i) and client in (None, s.client)}
        if found:
            self._worker.inbox.put(partial(self._worker.cancel, tuple(found)))
        for request_id, stream in found.items():
            del self._streams[request_id]
            self._observer.on_aborted(request_id)
            stream.push(_aborted(request_id))
        self._note_idle()

    async def stop(self, timeout_s: float) -> None:
        """End the thread, or abandon it if it is still busy after `timeout_s`."""
        self._worker.inbox.put(None)
        deadline = time.monotonic() + timeout_s
        while self._worker.thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(STOP_POLL_S)

    def on_ready(self) -> None:
        """Handle the end of the worker's warm-up."""
        if self.state in ("starting", "restarting"):
            self.state = "ready"
        if self.state != "dead":
            self.ready.set()

    def on_failed(self, worker: EngineWorker, reason: str) -> None:
        """Handle a worker's failure; failures of earlier workers are ignored."""
        if worker is self._worker:
            self.on_failure(reason)

    def on_step(
        self, started: Sequence[str], began: float, outputs: Sequence[RequestOutput], now: float
    ) -> None:
        """Handle one step of the worker, from `began` to `now` on its clock."""
        self._observer.on_started([id for id in started if id in self._streams], began)
        known = [output for output in outputs if output.request_id in self._streams]
        self._observer.on_outputs(known, now)
        for output in known:
            stream = self._streams[output.request_id]
            if output.finish_reason is not None:
                del self._streams[output.request_id]
            if output.finish_reason == "error":
                reason = f"{output.stop_reason}"
                by_request = reason.startswith((BARS_EVERY_TOKEN, GRAMMAR_FAILED))
                stream.fail(GenerationFailed(reason, by_request=by_request))
            else:
                stream.push(output)
        self._note_idle()

    def _answer(self) -> asyncio.Future[Any]:
        """Return a future that the engine's thread or the engine's death settles."""
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
