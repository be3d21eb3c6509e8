"""Chooses the handlers of request records."""

from collections.abc import Callable

from serve.options.operations import Operations
from serve.telemetry.logs import log_requests
from serve.telemetry.record import RecordHandler
from serve.telemetry.tracing import trace_to


def observers_of(
    operations: Operations, model: str, spell: Callable[[int], bytes]
) -> tuple[list[RecordHandler], Callable[[], object]]:
    """Return the handlers of request records, and a function that sends pending spans.

    `spell` returns a token's bytes, for logs with prompts.
    """
    observers: list[RecordHandler] = []
    send: Callable[[], object] = list
    if operations.log_each_request:
        observers.append(log_requests(spell if operations.log_prompts else None))
    if operations.otlp_endpoint is not None:
        observer, send = trace_to(operations.otlp_endpoint, model)
        observers.append(observer)
    return observers, send
