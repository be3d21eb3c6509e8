"""Compile grammars of requests in separate threads."""

import asyncio
from functools import partial

from eagle3_jax.engine.grammars.interface import (
    CompiledGrammar,
    FormRefusedError,
    Grammars,
    GrammarsBusyError,
)
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.engine.errors import Refused, Unavailable
from serve.engine.threads import Threads

AT_ONCE = 8
"""Number of compiling threads. Each runs for a bounded time, and the kernel shares the processors,
so small grammars finish in milliseconds."""
MOST_WAITING = 64


class GrammarPool:
    """A pool of threads that compiles grammars; slow grammars delay only other grammars."""

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = grammars
        self._threads = Threads("grammar", AT_ONCE)
        self._compiling: dict[tuple[StructuredOutputs, str], asyncio.Task[CompiledGrammar]] = {}
        """Running compilations, by form and the field that errors name."""

    async def compile(self, form: StructuredOutputs) -> CompiledGrammar:
        """Compile a form once for concurrent requests; raises Refused, or Unavailable if full."""
        known = self.grammars.known(form)
        if known is not None:
            return known
        key = form, form.asked_by
        task = self._compiling.get(key)
        if task is None:
            if len(self._compiling) >= MOST_WAITING:
                message = f"{MOST_WAITING} grammars are being compiled or wait for it"
                raise Unavailable(message, retry_after_s=2)
            task = asyncio.create_task(self._compile(form))
            self._compiling[key] = task
            task.add_done_callback(partial(self._settled, key))
        # Shielded: other requests may wait for the same task after a client disconnects.
        return await asyncio.shield(task)

    def _settled(
        self, key: tuple[StructuredOutputs, str], task: asyncio.Task[CompiledGrammar]
    ) -> None:
        del self._compiling[key]
        if not task.cancelled():
            task.exception()  # Mark as retrieved, even if all clients have disconnected.

    async def _compile(self, form: StructuredOutputs) -> CompiledGrammar:
        try:
            return await self._threads.run(partial(self.grammars.compile, form))
        except FormRefusedError as error:
            raise Refused(str(error), error.field) from error
        except GrammarsBusyError as error:
            raise Unavailable(str(error), retry_after_s=2) from error
