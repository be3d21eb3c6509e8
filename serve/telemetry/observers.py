"""Handlers of request records: log lines, and trace spans for requests that generate.

Spans follow OpenTelemetry's conventions for generative AI. The packages are those of the extra
`otel`, imported only if tracing is on.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from serve.engine.choices import Choices
from serve.options.operations import Operations
from serve.telemetry.logs import log_requests
from serve.telemetry.record import RecordHandler, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
}
NS = 1_000_000_000


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


def trace_to(endpoint: str, model_name: str) -> tuple[RecordHandler, Callable[[], object]]:
    """Return a handler that sends spans to the collector at `endpoint` (OTLP over HTTP).

    A thread sends them some seconds later; the second result sends pending ones at once.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    processor = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))
    return spans(processor, model_name), processor.force_flush


def spans(processor: "SpanProcessor", model_name: str) -> RecordHandler:
    """Return a handler that converts a record to a span for the SDK's span processor."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    provider = TracerProvider(resource=Resource.create({"service.name": "eagle3-serve"}))
    provider.add_span_processor(processor)
    tracer, parents = provider.get_tracer("eagle3-jax"), TraceContextTextMapPropagator()

    def trace(record: RequestRecord) -> None:
        if record.generated is None:
            return
        attributes = _attributes(record, record.generated, model_name)
        span = tracer.start_span(
            f"{attributes['gen_ai.operation.name']} {model_name}",
            context=parents.extract(dict(record.headers)),
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=record.began_ns,
        )
        if record.status >= 400:
            span.set_status(StatusCode.ERROR)
        span.end(record.began_ns + int(record.duration * NS))

    return trace


def _attributes(record: RequestRecord, generated: Choices, model_name: str) -> dict[str, Any]:
    fields = record.fields()
    attributes = {
        "gen_ai.operation.name": OPERATIONS.get(record.path, "generate_content"),
        "gen_ai.provider.name": "eagle3-jax",
        "gen_ai.request.model": model_name,
        "gen_ai.request.id": record.request_id,
        "gen_ai.usage.input_tokens": fields["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": fields["cached_tokens"],
        "gen_ai.usage.output_tokens": fields["completion_tokens"],
        "gen_ai.response.finish_reasons": generated.finish_reasons,
        "gen_ai.latency.time_to_first_token": record.time_to_first_token,
        "eagle3.accepted_tokens": fields["accepted_tokens"],
        "http.request.method": fields["method"],
        "url.path": fields["path"],
        "http.response.status_code": record.status,
    }
    return {name: value for name, value in attributes.items() if value is not None}
