"""Bounds on what one client may ask, and what becomes of connections that are many or no HTTP."""

import json
import logging
import os
import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, Held, HeldTokenizer, expected_answer
from fake_server import Served
from probe import wait_for
from pydantic import ValidationError

from serve.asgi.accepting import raise_limit, room_for_connections
from serve.openai.protocol import ChatCompletionRequest, CompletionRequest
from serve.options.operations import Operations
from serve.telemetry.logs import JsonFormatter, OncePerSecond, log_requests

COMPLETIONS = "/v1/completions"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: fake\r\nContent-Type: application/json\r\n"


@contextmanager
def connection(server: Served) -> Iterator[socket.socket]:
    with socket.create_connection((server.http.base_url.host, server.http.base_url.port)) as bare:
        bare.settimeout(10)
        yield bare


def read_to_end(bare: socket.socket) -> bytes:
    """Everything until the server hangs up."""
    pieces = []
    while piece := bare.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture
def small(serve) -> Served:
    return serve(FakeEngine(), operations=Operations(max_body_bytes=1000, client_timeout_s=0.3))


def test_a_body_above_the_limit_is_413_whether_its_length_is_told_or_not(small: Served) -> None:
    headers, fitting = {"Content-Type": "application/json"}, b'{"prompt": "a"}'.ljust(1000)
    fits = small.http.post(COMPLETIONS, content=fitting, headers=headers)
    assert fits.status_code == 200
    declared = small.http.post(COMPLETIONS, content=b"x" * 1001)
    chunked = small.http.post(COMPLETIONS, content=iter([b"x" * 600, b"x" * 600]))
    for answer in (declared, chunked):
        assert answer.status_code == 413, answer.text
        assert answer.json()["error"]["code"] == "body_too_large"


def test_a_body_of_an_untold_size_is_refused_before_it_has_come(small: Served) -> None:
    with connection(small) as bare:
        bare.sendall(POST + b"Content-Length: 99999999999\r\n\r\n")
        assert read_to_end(bare).startswith(b"HTTP/1.1 413")


def test_a_client_that_sends_all_before_it_reads_gets_its_answer(small: Served) -> None:
    """16 MB are more than the connection's buffers hold; without reading them it would be reset."""
    with connection(small) as bare:
        bare.sendall(POST + b"Content-Length: 16000000\r\n\r\n")
        bare.sendall(b"x" * 16_000_000)
        assert read_to_end(bare).startswith(b"HTTP/1.1 413")


def test_slow_bodies_and_heads_are_hung_up_on(small: Served) -> None:
    with connection(small) as bare:
        bare.sendall(POST + b'Content-Length: 100\r\n\r\n{"prompt"')
        answer = read_to_end(bare)
    assert answer.startswith(b"HTTP/1.1 408") and b"body_too_slow" in answer
    began = time.monotonic()
    with connection(small) as bare, pytest.raises(OSError):
        for byte in POST:
            bare.sendall(bytes([byte]))
            time.sleep(0.02)
    assert time.monotonic() - began < 1.0
    with connection(small) as bare, suppress(ConnectionResetError):
        assert bare.recv(1) == b"", "a client that says nothing"


def test_requests_on_a_kept_connection_each_have_the_whole_time(small: Served) -> None:
    for _ in range(3):
        time.sleep(0.2)
        assert small.http.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200


def test_the_last_place_in_the_queue_is_taken_and_only_then_it_is_full(serve) -> None:
    """Send one request of three choices or three requests; the queue reopens once it empties."""
    engine = FakeEngine()
    server: Served = serve(engine, operations=Operations(max_queued=3))
    one, three = ({"prompt": "a", "n": n, "max_tokens": 4} for n in (1, 3))
    server.ask(COMPLETIONS, **three)
    engine.go.clear()
    with ThreadPoolExecutor() as pool:
        waiting = []
        for count in (1, 2, 3):
            waiting.append(pool.submit(server.http.post, COMPLETIONS, json=one))
            while len(server.service.engine._streams) < count:
                assert not waiting[-1].done(), waiting[-1].result().text
                time.sleep(0.005)
        full = server.http.post(COMPLETIONS, json=one)
        assert full.status_code == 429 and int(full.headers["Retry-After"]) > 0
        error = full.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert server.http.get("/health").status_code == 200
        engine.go.set()
        assert [answer.result().status_code for answer in waiting] == [200] * 3
    server.ask(COMPLETIONS, **three)


def test_one_client_that_fills_the_queue_leaves_room_for_others(serve) -> None:
    """An eighth of the limit for each, up to twice the limit for all."""
    engine, keys = FakeEngine(), tuple(f"key-{i}" for i in range(11))
    engine.go.clear()
    server = serve(engine, operations=Operations(max_queued=16, api_keys=keys))

    def post(key: str, path: str, **body: Any) -> httpx.Response:
        return server.http.post(path, json=body, headers={"x-api-key": key})

    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(post, keys[0], COMPLETIONS, prompt="a", n=16, max_tokens=4)]
        wait_for(lambda: len(server.service.engine._streams) == 16)
        for path, body in ((COMPLETIONS, {"prompt": "a"}), ("/v1/chat/completions", chat)):
            assert post(keys[0], path, **body).status_code == 429
        for i, key in enumerate(keys[1:9]):
            assert post(key, COMPLETIONS, prompt="a", n=3).status_code == 429
            asked.append(pool.submit(post, key, "/v1/chat/completions", n=2, **chat))
            wait_for(lambda i=i: len(server.service.engine._streams) == 18 + 2 * i)
            assert post(key, COMPLETIONS, prompt="a").status_code == 429
        assert post(keys[9], COMPLETIONS, prompt="a").status_code == 429
        engine.go.set()
        assert [answer.result().status_code for answer in asked] == [200] * 9
    clients = [request.client for request in engine.asked[14:19]]
    assert clients == ["key 0", "key 0", "key 1", "key 1", "key 2"]


def test_a_list_of_wrong_items_makes_one_error() -> None:
    for model, body in (
        (CompletionRequest, {"prompt": [{}] * 1000}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["x"] * 1000}),
        (ChatCompletionRequest, {"messages": [1] * 1000}),
        (ChatCompletionRequest, {"messages": [{"role": "user"}], "tools": [1] * 1000}),
    ):
        with pytest.raises(ValidationError) as caught:
            model.model_validate(body)
        # One for every form that the field may have.
        assert caught.value.error_count() <= 4


@pytest.mark.parametrize(
    ("path", "field"),
    [(COMPLETIONS, "prompt"), ("/v1/chat/completions", "messages"), ("/tokenize", "prompt")],
)
def test_nobody_waits_for_a_long_text_to_be_tokenised(serve, path: str, field: str) -> None:
    held, long = Held(), "a" * 30_000
    server: Served = serve(FakeEngine(), tokenizer=HeldTokenizer(held, long))
    body = {field: long if field == "prompt" else [{"role": "user", "content": long}]}
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.http.post, path, json=body)
        assert held.begun.wait(10)
        assert server.http.get("/health").status_code == 200
        held.may_end.set()
        assert answer.result().status_code in (200, 400)


CHOICES, TOKENS = 128, 40
BODY = {"prompt": "a" * 200, "max_tokens": TOKENS, "n": CHOICES, "stream": True}
STREAM = json.dumps(BODY | {"return_token_ids": True}).encode()
STREAM = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(STREAM) + STREAM


@contextmanager
def stalled(serve, timeout_s: float) -> Iterator[tuple[Served, socket.socket]]:
    """A client that has asked for a stream and reads nothing; the engine is through with it."""
    operations = Operations(client_timeout_s=timeout_s)
    server = serve(FakeEngine(step_s=0.001), operations=operations, send_buffer=4096)
    with connection(server) as bare:
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bare.sendall(STREAM)
        # A busy machine may hang up, and so cancel, before the engine comes to the last step.
        while len(server.engine.asked) < CHOICES or server.engine.running:
            time.sleep(0.01)
        yield server, bare


def test_who_reads_late_slowed_nobody_and_gets_everything_in_fewer_pieces(serve) -> None:
    with stalled(serve, timeout_s=60) as (server, bare):
        assert server.http.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        answer = read_to_end(bare).decode()
    assert "data: [DONE]" in answer and answer.count('"finish_reason":"length"') == CHOICES
    events = [json.loads(line[6:]) for line in answer.split("\r\n") if line.startswith("data: {")]
    ids = [i for event in events for i in event["choices"][0]["token_ids"]]
    assert len(ids) == CHOICES * TOKENS and len(events) < CHOICES * TOKENS / 2


def test_who_reads_nothing_is_hung_up_on(serve) -> None:
    with stalled(serve, timeout_s=0.5) as (_, bare):
        time.sleep(1.0)
        assert b"[DONE]" not in read_to_end(bare)


SIX_TOKENS = {"prompt": "abc", "seed": 0, "max_tokens": 6}
MALFORMED = {
    b"NONSENSE\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03": 400,
    b"GET /health HTTP/1.1\r\n\r\n": 400,
    b"GET /health HTTP/1.1\r\nHost: x\r\nBad Header: x\r\n\r\n": 400,
    POST + b"Content-Length: -1\r\n\r\n": 400,
    POST + b"Transfer-Encoding: gzip\r\n\r\n": 400,
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP": 400,
    POST + b"transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n2\r\n{}\r\n0\r\n\r\n": 400,
    POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n": 400,
    POST + b"X: " + b"x" * 1_000_000: 431,
}


def request(body: dict[str, Any], version: bytes = b"1.1") -> bytes:
    content = json.dumps(body).encode()
    head = POST.replace(b"HTTP/1.1", b"HTTP/" + version)
    return head + b"Content-Length: %d\r\n\r\n" % len(content) + content


def refusal(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower() and b"application/json" in head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


@pytest.mark.parametrize("sent", MALFORMED, ids=lambda sent: repr(sent[-20:]))
def test_what_is_no_http_gets_an_error_in_openais_form_and_is_hung_up_on(
    fake: Served, sent: bytes
) -> None:
    with connection(fake) as bare:
        bare.sendall(sent)
        status, error = refusal(read_to_end(bare))
    assert (status, error["code"]) == (MALFORMED[sent], "invalid_http")


def test_a_request_that_is_cut_short_is_400(fake: Served) -> None:
    for sent in (b"POST /v1/comp", POST, POST + b"Content-Length: 100\r\n\r\n{"):
        with connection(fake) as bare:
            bare.sendall(sent)
            bare.shutdown(socket.SHUT_WR)
            status, error = refusal(read_to_end(bare))
        assert status == 400 and "has no end" in error["message"]


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"max_tokens": 100}], ids=str)
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_client_that_has_ended_its_own_side_gets_its_answer(
    serve, fields: dict[str, Any], version: bytes
) -> None:
    body = SIX_TOKENS | fields
    server = serve(FakeEngine(step_s=0.015))
    with connection(server) as bare:
        bare.sendall(request(body, version))
        bare.shutdown(socket.SHUT_WR)
        answer = read_to_end(bare).decode()
    interim, _, final = answer.rpartition("HTTP/1.1 200 OK\r\n")
    # One that takes longer than half a second is announced, to learn whether the client is there.
    long = body["max_tokens"] == 100 and version == b"1.1"
    assert interim == ("HTTP/1.1 100 Continue\r\n\r\n" if long else "")
    text = expected_answer("abc", 0, body["max_tokens"])
    assert final.count(text[-2:] + '"') == 1 and ("data: [DONE]" in final) is ("stream" in fields)
    assert not server.engine.cancelled


def test_connections_without_a_request_give_way_to_others(serve) -> None:
    server = serve(FakeEngine(), max_connections=4)
    url = server.http.base_url
    opened = [socket.create_connection((url.host, url.port)) for _ in range(20)]
    for bare in opened[::2]:
        bare.sendall(b"POST /v1")
    for _ in range(3):
        assert httpx.get(server.http.base_url.join("/health"), timeout=10).status_code == 200
    for bare in opened:
        bare.close()


def test_connections_with_requests_keep_their_place_and_others_wait(serve) -> None:
    server = serve(FakeEngine(), max_connections=3)
    url = server.http.base_url.join("/v1/completions")
    server.engine.go.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(httpx.post, url, json=SIX_TOKENS, timeout=10) for _ in range(8)]
        time.sleep(0.6)
        assert not any(answer.done() for answer in asked)
        server.engine.go.set()
        assert [answer.result().status_code for answer in asked] == [200] * 8


def test_the_soft_limit_on_descriptors_is_raised_and_leaves_room() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        small = room_for_connections()
        raise_limit()
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert 0 < small < 384 < room_for_connections() <= raised * 3 / 4
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 2, hard))
        with pytest.raises(OSError, match="ulimit -n"):
            room_for_connections()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_answer_names_the_host_that_the_client_named(fake: Served) -> None:
    for path in ("/v1/models/", "/docs/", "/page", "/v1/completions/"):
        answer = fake.http.get(path, headers={"Host": "evil.example"})
        assert answer.status_code in (404, 405) and "error" in answer.json()
        assert "evil" not in answer.text + str(answer.headers)


def test_a_long_method_or_path_is_cut_in_the_log(serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "serve")
    server = serve(FakeEngine(), observers=[log_requests(None)])
    server.http.request("M" * 20_000, "/" + "é" * 5000)
    wait_for(lambda: caplog.records)
    line = json.loads(JsonFormatter().format(caplog.records[0]))
    assert line["method"] == "M" * 200 + "... (20000 characters)"
    assert line["path"] == "/" + "é" * 199 + "... (5001 characters)"


def test_a_warning_that_repeats_is_written_once_a_second_with_its_number() -> None:
    now = 0.0
    limit = OncePerSecond(lambda: now)

    def passes(message: str, level: int = logging.WARNING) -> Any:
        record = logging.LogRecord("a", level, "", 0, message, None, None)
        return record if limit.filter(record) else None

    assert passes("full") and passes("other")
    for _ in range(1000):
        now += 0.0009
        assert not passes("full") and passes("request", logging.INFO)
    now += 0.2
    assert passes("full").fields == {"left_out": 1000}
    now += 1
    assert not hasattr(passes("full"), "fields")
    assert all(passes(f"warning {i}") for i in range(5000)) and len(limit._written) <= 1000
