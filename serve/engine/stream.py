"""The stream of engine outputs that belong to one client request."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from eagle3_jax.engine import RequestOutput


def merge(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Two consecutive outputs of one request as one."""
    return replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        text=first.text + second.text,
        rounds=first.rounds + second.rounds,
        logprobs=first.logprobs + second.logprobs,
        origins=first.origins + second.origins,
    )


class OutputStream:
    """The outputs of the engine requests behind one HTTP request, until all have finished.

    Lives on the event loop. A reader slower than the engine gets the waiting outputs of a request
    merged, so what waits is bounded by the answer itself.
    """

    def __init__(self, request_ids: Sequence[str], client: str = "") -> None:
        """client: whose requests they are (`Request.client`)."""
        self.client = client
        self.unfinished = set(request_ids)
        self._waiting: dict[str, RequestOutput] = {}
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def push(self, output: RequestOutput) -> None:
        """Adds an output; one with a finish reason is the request's last."""
        earlier = self._waiting.get(output.request_id)
        self._waiting[output.request_id] = merge(earlier, output) if earlier else output
        if output.finish_reason is not None:
            self.unfinished.discard(output.request_id)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Makes the reader raise `error` once it has read what came before."""
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
