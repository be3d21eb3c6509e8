"""What the server makes of connections that are many, half closed, or no HTTP."""

import json
import logging
import os
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, expected_answer
from fake_server import Served, wait_for
from test_limits import POST, connection, read_to_end

from serve.asgi.listening.accepting import MOST, raise_limit, room_for_connections
from serve.telemetry.logs import JsonFormatter, OncePerSecond, log_requests

BODY = {"prompt": "abc", "seed": 0, "max_tokens": 6}
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
    """Status and error of the one response there is."""
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
    body = BODY | fields
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
        asked = [pool.submit(httpx.post, url, json=BODY, timeout=10) for _ in range(8)]
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
        assert raised == (MOST if hard == resource.RLIM_INFINITY else min(hard, MOST))
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
    written = JsonFormatter().format(caplog.records[0])
    line = json.loads(written)
    assert len(written) < 3000
    assert line["method"] == "M" * 200 + "... (20000 characters)"
    assert line["path"] == "/" + "é" * 199 + "... (5001 characters)"


def test_a_warning_that_repeats_is_written_once_a_second_with_its_number() -> None:
    now = 0.0
    limit = OncePerSecond(lambda: now)

    def passes(message: str, level: int = logging.WARNING) -> logging.LogRecord | None:
        record = logging.LogRecord("a", level, "", 0, message, None, None)
        return record if limit.filter(record) else None

    assert passes("full") and passes("other")
    for _ in range(1000):
        now += 0.0009
        assert not passes("full") and passes("request", logging.INFO)
    now += 0.2
    again = passes("full")
    assert again is not None and again.fields == {"left_out": 1000}  # type: ignore[attr-defined]
    now += 1
    assert not hasattr(passes("full"), "fields")
    for i in range(5000):
        assert passes(f"warning {i}")
    assert len(limit._written) <= 1000
