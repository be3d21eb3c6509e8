"""What one client may ask of the server: size, number and time are bounded."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fake_engine import CharTokenizer, FakeEngine
from fake_server import Served, wait_for
from pydantic import ValidationError

from serve.openai.protocol import ChatCompletionRequest, CompletionRequest
from serve.options.operations import Operations

COMPLETIONS = "/v1/completions"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: fake\r\nContent-Type: application/json\r\n"


@contextmanager
def connection(server: Served) -> Iterator[socket.socket]:
    """A bare connection to the server."""
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


def test_a_slow_body_is_408(small: Served) -> None:
    with connection(small) as bare:
        bare.sendall(POST + b'Content-Length: 100\r\n\r\n{"prompt"')
        answer = read_to_end(bare)
    assert answer.startswith(b"HTTP/1.1 408") and b"body_too_slow" in answer


def test_a_trickled_head_is_hung_up_on(small: Served) -> None:
    began = time.monotonic()
    with connection(small) as bare, pytest.raises(OSError):
        for byte in POST:
            bare.sendall(bytes([byte]))
            time.sleep(0.02)
    assert time.monotonic() - began < 1.0
    with connection(small) as bare:
        try:
            silent = bare.recv(1)
        except ConnectionResetError:
            silent = b""
        assert silent == b""


def test_requests_on_a_kept_connection_each_have_the_whole_time(small: Served) -> None:
    for _ in range(3):
        time.sleep(0.2)
        assert small.http.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200


def test_the_last_place_in_the_queue_is_taken_and_only_then_it_is_full(serve) -> None:
    """As one request of three choices or as three; it is open again once it empties."""
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


def test_more_sequences_than_the_queue_ever_takes_are_400_at_once(serve) -> None:
    server: Served = serve(FakeEngine(), operations=Operations(max_queued=100))
    assert "50000 sequences" in server.refusal(COMPLETIONS, {"prompt": [[1]] * 50_000})["message"]
    assert not server.engine.prompt_tokens


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


LONG = "a" * 30_000


class SlowTokenizer(CharTokenizer):
    """Waits for `go` before it is through with a long text."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def encode(self, text: str, add_special: bool = False, most: int | None = None) -> list[int]:
        if len(text) >= len(LONG):
            self.begun.set()
            assert self.go.wait(10), "somebody waited"
        return super().encode(text)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": LONG}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/tokenize", {"prompt": LONG}),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_nobody_waits_for_a_long_text_to_be_tokenised(serve, path: str, body: dict) -> None:
    tokenizer = SlowTokenizer()
    server: Served = serve(FakeEngine(), tokenizer=tokenizer)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.http.post, path, json=body)
        assert tokenizer.begun.wait(10)
        assert server.http.get("/health").status_code == 200
        tokenizer.go.set()
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
