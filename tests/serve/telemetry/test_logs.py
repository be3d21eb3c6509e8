"""One line a request, for people and for programs, without what the request said."""

import json
import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from fake_engine import CharTokenizer, FakeEngine
from fake_server import Served
from probe import wait_for
from starlette.datastructures import Headers

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams
from serve.engine.choices import Choices
from serve.options.serve_flags import parse_serve_flags
from serve.telemetry.logs import JsonFormatter, TextFormatter, log_requests
from serve.telemetry.record import RequestRecord

SECRET = {"prompt": "secret", "max_tokens": 6, "seed": 0}
Lines = Callable[[], list[dict]]


@pytest.fixture
def logged(serve, caplog: pytest.LogCaptureFixture) -> Callable[..., tuple[Served, Lines]]:
    def start(tokenizer: CharTokenizer | None = None) -> tuple[Served, Lines]:
        caplog.set_level(logging.INFO, "serve")
        server = serve(
            FakeEngine(step_s=0.01), observers=[log_requests(tokenizer and tokenizer.token_bytes)]
        )
        written, logger = JsonFormatter().format, "serve.telemetry.logs"
        # Servers of earlier tests may say something too.
        return server, lambda: [json.loads(written(r)) for r in caplog.records if r.name == logger]

    return start


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line_with_its_counts_and_times(logged, stream: bool) -> None:
    server, lines = logged(CharTokenizer() if stream else None)
    answer = server.http.post("/v1/completions", json=SECRET | {"n": 2, "stream": stream})
    assert answer.status_code == 200
    wait_for(lines)
    (line,) = lines()
    assert line["request_id"] == answer.headers["X-Request-ID"]
    names = ("method", "path", "status", "level", "finish_reason")
    shown = [line[name] for name in names]
    assert shown == ["POST", "/v1/completions", 200, "info", "length"]
    # Two answers of six tokens, two a round, one of them a draft.
    counts = (line["prompt_tokens"], line["completion_tokens"], line["accepted_tokens"])
    assert counts == (6, 12, 6)
    assert 0.01 < line["ttft_s"] < line["duration_s"]
    assert line.pop("prompt", "") == ("secret" if stream else ""), "only when asked for"
    assert "secret" not in json.dumps(line)


def test_the_clients_request_id_is_taken_if_it_is_fit_for_a_log(logged) -> None:
    server, lines = logged()
    for given, taken in [
        ("abc-1.2:3", True),
        ("a b", False),
        ("x" * 129, False),
        ("a=1\td", False),
    ]:
        answer = server.http.get("/v1/models", headers={"X-Request-ID": given})
        assert (answer.headers["X-Request-ID"] == given) is taken
    wait_for(lambda: len(lines()) == 4)
    assert len({line["request_id"] for line in lines()}) == 4


def test_errors_and_lost_clients_have_lines_too_and_probes_none(logged) -> None:
    server, lines = logged()
    server.http.get("/health")
    probe = RequestRecord("id", "GET", "/health", Headers(), status=503)
    log_requests(None)(probe)
    server.http.get("/metrics")
    server.http.post("/v1/completions", json={"prompt": ""})
    with server.http.stream(
        "POST", "/v1/completions", json=SECRET | {"max_tokens": 200, "stream": True}
    ) as answer:
        next(answer.iter_lines())
    wait_for(lambda: len(lines()) == 2)
    assert [line["status"] for line in lines()] == [400, 200]
    assert lines()[1]["finish_reason"] == "abort" and lines()[1]["completion_tokens"] < 200


def test_text_is_one_line_whatever_is_in_it() -> None:
    record = logging.LogRecord("serve", logging.INFO, "", 0, "request", None, None)
    record.fields = {"path": "/a\nb c", "status": 200}
    line = TextFormatter().format(record)
    assert line.endswith(r'INFO request path="/a\nb c" status=200') and "\n" not in line


def test_a_traceback_is_a_field_of_its_json_line() -> None:
    try:
        raise RuntimeError("gone")
    except RuntimeError as error:
        info = (RuntimeError, error, error.__traceback__)
        record = logging.LogRecord("serve", logging.ERROR, "", 0, "failed", None, info)
    line = JsonFormatter().format(record)
    assert "\n" not in line and "RuntimeError: gone" in json.loads(line)["exception"]


def test_a_request_is_a_span_with_the_names_for_generative_ai_under_its_callers(serve) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from serve.telemetry.observers import spans

    exporter = InMemorySpanExporter()
    seen: list[RequestRecord] = []
    observers = [spans(SimpleSpanProcessor(exporter), "fake"), seen.append]
    server = serve(FakeEngine(step_s=0.01), observers=observers)
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{parent}-01", "X-Request-ID": "abc"}
    server.http.post("/v1/completions", json=SECRET, headers=headers)
    server.http.get("/v1/models")
    wait_for(lambda: seen[-1].path == "/v1/models")
    (span,) = exporter.get_finished_spans()
    assert span.name == "text_completion fake"
    assert span.context is not None and span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (trace, parent)
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes["gen_ai.request.id"] == "abc" and attributes["gen_ai.request.model"] == "fake"
    used = [attributes[f"gen_ai.usage.{what}_tokens"] for what in ("input", "output")]
    assert used == [6, 6]
    assert attributes["gen_ai.response.finish_reasons"] == ("length",)
    first = attributes["gen_ai.latency.time_to_first_token"]
    duration = ((span.end_time or 0) - (span.start_time or 0)) / 1e9
    assert isinstance(first, float) and 0.01 < first < duration
    assert "secret" not in span.to_json()


def test_spans_that_wait_are_sent_before_the_server_ends() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from serve.telemetry.observers import trace_to

    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        trace, send = trace_to(f"http://127.0.0.1:{collector.server_port}/v1/traces", "fake")
        generated = Choices([Request("abc-1", [97], SamplingParams())], 1)
        trace(RequestRecord("abc-1", "POST", "/generate", Headers(), generated=generated))
        send()
        collector.shutdown()
    assert len(bodies) == 1 and b"abc-1" in bodies[0]


def test_traces_without_their_packages_are_refused_by_the_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("serve.options.operations._otel_is_installed", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        parse_serve_flags(["--demo", "--otlp-traces-endpoint", "http://localhost:4318/v1/traces"])
    assert "eagle3-jax[otel]" in capsys.readouterr().err
