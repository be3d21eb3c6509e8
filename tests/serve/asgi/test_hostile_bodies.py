"""The short form of tests/serve/hostile_bodies.py, and what is refused before any work on it."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fake_engine import CharTokenizer, FakeEngine
from fake_server import Served
from hostile_bodies import HEALTH_S, TOKEN_S, Others, post
from long_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES

from serve.asgi import json_body
from serve.asgi.json_body import MAX_PARTS, MAX_VALUES
from serve.openai import expansion

pytestmark = pytest.mark.xdist_group("served pair")

SHORT = ("all private-use characters", "prompt of <|", "many empty prompts, fewer", "bad_words")
SHORT += ("logit_bias of one hash", "detokenize", "responses: a tool that no prompt shows")
SHORT += ("messages: blocks, fewer",)
LARGE = ("a chat's log-probabilities", "prompts' log-probabilities", "a stream that repeats tools")
"""One of each form; `make prove-server` posts the others."""
BESIDE = 6
TURN = {"role": "user", "content": "a"}
RESULTS = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}] * (2**14 + 1)}
KEYS = [f"a{i}" for i in range(5000)]


@pytest.fixture(scope="module")
def others(server: Served) -> Iterator[Others]:
    with Others(server.http.base_url).running() as others:
        yield others


@pytest.mark.parametrize("name", SHORT)
def test_nobody_waits_for_a_hostile_body(server: Served, others: Others, name: str) -> None:
    """Other tests have the cores too: BESIDE times the bars, which a fault exceeds still."""
    statuses, _ = post(server.http.base_url, name, others)
    assert statuses <= {200, 400}
    assert others.seen.health < BESIDE * HEALTH_S and others.seen.token < BESIDE * TOKEN_S


@pytest.mark.parametrize("name", LARGE)
def test_nobody_waits_for_the_large_answers_of_several_clients(serve, name: str) -> None:
    """The engine has every answer at once, so that writing them is all there is to do. Clients are
    threads of the server's process here, so there are fewer of them than `make prove-server` has.
    """
    server = serve(FakeEngine(width=64))
    with Others(server.http.base_url).running() as others:
        statuses, _ = post(server.http.base_url, f"answers: {name}", others, 4)
    assert statuses == {200}
    assert others.seen.health < BESIDE * HEALTH_S and others.seen.token < BESIDE * TOKEN_S


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["a"] * 32, "max_tokens": 150, "logprobs": 20}, "max_tokens"),
        ({"prompt": ["a" * 200] * 32, "max_tokens": 1, "prompt_logprobs": 20}, "prompt"),
    ],
)
def test_what_an_answer_may_tell_is_counted_for_all_choices_together(
    fake: Served, body: dict, param: str
) -> None:
    error = fake.refusal(COMPLETIONS, {"n": 128, **body})
    assert error["param"] == param and "log-probabilities" in error["message"]


def test_an_answer_without_a_limit_is_as_long_as_may_be_told(fake: Served, monkeypatch) -> None:
    monkeypatch.setattr(expansion, "MAX_RETURNED", 8 * 21 * 5)
    body = {"messages": [TURN], "n": 8, "logprobs": True, "top_logprobs": 20}
    choices = fake.ask(CHAT, **body)["choices"]
    assert {len(choice["logprobs"]["content"]) for choice in choices} == {5}


class Counting(CharTokenizer):
    def __init__(self) -> None:
        self.encoded = self.decoded = 0

    def encode(self, text: str, add_special: bool = False, most: int | None = None) -> list[int]:
        self.encoded += 1
        return super().encode(text)

    def token_bytes(self, token_id: int, skip_special: bool = False) -> bytes:
        self.decoded += 1
        return super().token_bytes(token_id)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "bad_words": ["b"] * 129}, "bad_words"),
        (COMPLETIONS, {"prompt": "a", "stop": ["b"] * 65}, "stop"),
        (COMPLETIONS, {"prompt": "a", "stop": "b" * 4097}, "stop"),
        (COMPLETIONS, {"prompt": "a", "stop_token_ids": [1] * 65}, "stop_token_ids"),
        (COMPLETIONS, {"prompt": "a", "logit_bias": {str(2**61 - 1): 1}}, "logit_bias"),
        (COMPLETIONS, {"prompt": "a", "cache_salt": "b" * 1025}, "cache_salt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [[]] * 5000}, None),
        (CHAT, {"messages": [{"role": "user"}] * (2**14 + 1)}, "messages"),
        (CHAT, {"messages": [{"role": "a"}], "tools": [{}] * 1025}, "tools"),
        (RESPONSES, {"input": [{"role": "user", "content": "a"}] * (2**14 + 1)}, "input"),
        (RESPONSES, {"input": "a", "tools": [{}] * 1025}, "tools"),
        (RESPONSES, {"input": "a", "include": ["reasoning.encrypted_content"] * 65}, "include"),
        (RESPONSES, {"input": "a", "metadata": {str(i): "b" for i in range(17)}}, "metadata"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "a" * 1025}]}, "input"),
        (RESPONSES, {"input": "a", "previous_response_id": "b" * 1025}, "previous_response_id"),
        (RESPONSES, {"input": [{"role": "user", "content": [{}] * 5000}]}, "input"),
        (MESSAGES, {"messages": [{"role": "user"}] * (2**14 + 1)}, "messages"),
        (MESSAGES, {"messages": [{"role": "a"}], "tools": [{}] * 1025}, "tools"),
        (MESSAGES, {"messages": [TURN], "max_tokens": 1, "stop_sequences": ["b"] * 65}, "stop"),
        (MESSAGES, {"messages": [TURN], "max_tokens": 1, "stop_sequences": ["b" * 4097]}, "stop"),
        (MESSAGES, {"messages": [RESULTS], "max_tokens": 1}, "messages"),
        (MESSAGES, {"messages": [TURN], "max_tokens": 1} | dict.fromkeys(KEYS), "a0"),
        ("/detokenize", {"tokens": [1] * (8 * 256 + 1)}, "tokens"),
        ("/generate", {"text": ["a"], "sampling_params": [{}] * (2**14 + 1)}, "sampling_params"),
        ("/generate", {"input_ids": [[1]] * (2**14 + 1)}, "input_ids"),
        ("/generate", {"text": ["a"] * 5000}, None),
    ],
)
def test_what_is_too_many_is_refused_before_a_tokenizer_sees_it(
    serve, path: str, body: dict, param: str | None
) -> None:
    tokenizer = Counting()
    server = serve(FakeEngine(), tokenizer=tokenizer)
    tokenizer.encoded = tokenizer.decoded = 0
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    if path == MESSAGES:  # Anthropic's errors have no field of their own for it.
        assert f"{param}" in answer.json()["error"]["message"]
    else:
        assert answer.json()["error"]["param"] == param, answer.text
    assert len(answer.text) < 2000
    assert not tokenizer.encoded and not tokenizer.decoded


@pytest.mark.parametrize("path", [COMPLETIONS, "/generate"])
def test_options_about_tokens_are_counted_for_all_choices_together(fake: Served, path: str) -> None:
    allowed = {"allowed_token_ids": [97] * 2**18}
    for count, status in ((4, 400), (1, 200)):
        body = {"prompt": "a", "n": count, **allowed}
        if path == "/generate":
            body = {"text": ["a"] * count, "sampling_params": allowed}
        answer = fake.http.post(path, json=body)
        assert answer.status_code == status, answer.text[:500]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"prompt": "a", "x": [' + b"1," * MAX_VALUES + b"1]}", 400),
        (b'{"prompt": "a", "x": [' + b"[]," * MAX_PARTS + b"1]}", 400),
        (b'{"prompt": "a", "x": "' + b'[{:,\\"' * MAX_VALUES + b'"}', 200),
        (b'{"prompt": ' + b"[" * 50_000, 400),
        (b'{"prompt": "' + b"\xff" * 50_000 + b'"}', 400),
    ],
    ids=["values", "parts", "marks within a text", "nested", "no text"],
)
def test_values_are_counted_before_they_are_read_and_texts_are_one_each(
    fake: Served, body: bytes, status: int
) -> None:
    headers = {"content-type": "application/json"}
    answer = fake.http.post(COMPLETIONS, content=body, headers=headers)
    assert answer.status_code == status, answer.text[:500]
    assert len(answer.content) < 2000


def test_values_are_counted_alike_in_windows_of_any_size(monkeypatch) -> None:
    value = [{"a\\": '[,"', "b": ["\\", '\\"', "中", 1, {}]}, "x" * 40, {"": [None]}] * 9
    body = json.dumps(value, ensure_ascii=False).encode()
    for window in range(1, 50):
        monkeypatch.setattr(json_body, "WINDOW", window)
        commas, parts = json_body._marks_outside_texts(body)
        assert (commas, parts) == (71, 73), window


def test_a_long_body_is_read_and_checked_beside_the_loop(fake: Served, monkeypatch) -> None:
    begun, go, read = threading.Event(), threading.Event(), json_body._read

    def slow(body: bytes, check: Callable[[Any], Any]) -> Any:
        begun.set()
        assert go.wait(10), "somebody waited"
        return read(body, check)

    monkeypatch.setattr(json_body, "_read", slow)
    with ThreadPoolExecutor() as pool:
        body = {"prompt": "a" * json_body.LONG_BYTES}
        answer = pool.submit(fake.http.post, COMPLETIONS, json=body)
        assert begun.wait(10)
        assert fake.http.get("/health").status_code == 200
        go.set()
        assert answer.result().status_code == 400


def test_a_text_is_given_up_where_it_becomes_too_long(server: Served, pair) -> None:
    most = server.service.model.max_model_len
    longest = pair.tokenizer.longest_token
    answer = server.http.post(COMPLETIONS, json={"prompt": "a" * (most * longest + 1)})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "context_length_exceeded"
    assert f"more than {most}" in error["message"]
