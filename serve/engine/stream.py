"""Stream of the engine outputs of one client request."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from eagle3_jax.engine import RequestOutput


def merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Merge two consecutive outputs of one request."""
    return replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        text=first.text + second.text,
        rounds=first.rounds + second.rounds,
        logprobs=first.logprobs + second.logprobs,
        origins=first.origins + second.origins,
    )


class OutputStream:
    """The outputs of the engine requests of one HTTP request, until all have finished.

    Used on the event loop only. Outputs that a slow reader has not read are merged per request, so
    their size is bounded by the answer.
    """

    def __init__(self, request_ids: Sequence[str], client: str = "") -> None:
        """Create the stream; `client` owns the requests (`Request.client`)."""
        self.client = client
        self.unfinished = set(request_ids)
        self._waiting: dict[str, RequestOutput] = {}
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def push(self, output: RequestOutput) -> None:
        """Add an output; one with a finish reason is the request's last."""
        earlier = self._waiting.get(output.request_id)
        self._waiting[output.request_id] = merge(earlier, output) if earlier else output
        if output.finish_reason is not None:
            self.unfinished.discard(output.request_id)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Make the reader raise `error` after it has read earlier outputs."""
        self._error = error
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        while self.unfinished or self._waiting:
            if not self._waiting:
                if self._error is not None:
                    raise self._error
                self._changed.clear()
                await self._changed.wait()
            ready, self._waiting = self._waiting, {}
            for output in ready.values():
                yield output
