"""Who is shown every request."""

from collections.abc import Callable

from serve.options.operations import Operations
from serve.telemetry.logs import log_requests
from serve.telemetry.record import RecordHandler
from serve.telemetry.tracing import trace_to


def observers_of(
    operations: Operations, model: str, spell: Callable[[int], bytes]
) -> tuple[list[RecordHandler], Callable[[], object]]:
    """What is shown every request, and what sends off that of it which waits to be sent.

    spell: a token's bytes, for logs that have prompts.
    """
    observers: list[RecordHandler] = []
    send: Callable[[], object] = list
    if operations.log_each_request:
        observers.append(log_requests(spell if operations.log_prompts else None))
    if operations.otlp_endpoint is not None:
        observer, send = trace_to(operations.otlp_endpoint, model)
        observers.append(observer)
    return observers, send
