"""Errors of messages are in Anthropic's form, as its own client reads them."""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types.shared import ErrorResponse
from fake_engine import FakeEngine
from fake_server import Served

from serve.asgi.error_forms import ANTHROPIC_PATH
from serve.options.operations import Operations

Connect = Callable[..., anthropic.Anthropic]
ASKED: Any = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
KEYS = ("first-key", "second-key")


def check_form(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The body of an error, whose form is checked."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    told = ErrorResponse.model_validate(body)
    assert set(body) == {"type", "error", "request_id"} and told.type == "error"
    assert set(body["error"]) == {"type", "message"} and body["error"]["type"] == kind
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    return body


@pytest.fixture
def small(serve: Callable[..., Served]) -> Served:
    """With keys, and little room."""
    limits = Operations(api_keys=KEYS, max_body_bytes=1000, max_queued=1)
    return serve(FakeEngine(step_s=0.01), operations=limits)


def test_a_key_comes_in_either_header(small: Served, connect: Connect) -> None:
    for key in KEYS:
        assert connect(small, api_key=key).messages.create(**ASKED).content
        bearer = connect(small, api_key=None, auth_token=key)
        assert bearer.messages.create(**ASKED).content
    both = {"Authorization": "Bearer wrong", "x-api-key": KEYS[0]}
    assert small.http.post(ANTHROPIC_PATH, json=ASKED, headers=both).status_code == 200
    for headers in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}, {"x-api-key": f"a {KEYS[0]}"}):
        answer = small.http.post(ANTHROPIC_PATH, json=ASKED, headers=headers)
        check_form(answer, 401, "authentication_error")
    with pytest.raises(anthropic.AuthenticationError, match="x-api-key: KEY"):
        connect(small, api_key="wrong").messages.create(**ASKED)


def test_what_is_not_there_is_404_or_405(fake: Served, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="gpt-9") as caught:
        client.messages.create(**{**ASKED, "model": "gpt-9"})
    assert caught.value.type == "not_found_error"
    assert caught.value.request_id == caught.value.body["request_id"]  # type: ignore[index]
    check_form(fake.http.get(f"{ANTHROPIC_PATH}/batches"), 404, "not_found_error")
    check_form(fake.http.get(ANTHROPIC_PATH), 405, "invalid_request_error")


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b"[" * 100_000, b'{"max_tokens": NaN}'])
def test_a_body_that_is_none_is_400(fake: Served, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    for path in (ANTHROPIC_PATH, f"{ANTHROPIC_PATH}/count_tokens"):
        answer = fake.http.post(path, content=body, headers=headers)
        check_form(answer, 400, "invalid_request_error")


def test_a_prompt_that_is_too_long_is_400(client: anthropic.Anthropic) -> None:
    long = {**ASKED, "messages": [{"role": "user", "content": "a" * 300}]}
    with pytest.raises(anthropic.BadRequestError, match="context length is 256"):
        client.messages.create(**long)


def test_a_body_that_is_too_large_is_413(small: Served, connect: Connect) -> None:
    long = {**ASKED, "messages": [{"role": "user", "content": "a" * 1000}]}
    with pytest.raises(anthropic.APIStatusError) as caught:
        connect(small, api_key=KEYS[0]).messages.create(**long)
    assert (caught.value.status_code, caught.value.type) == (413, "request_too_large")


def test_a_full_queue_is_overloaded(small: Served, connect: Connect) -> None:
    client = connect(small, api_key=KEYS[0])
    with client.messages.stream(**{**ASKED, "max_tokens": 200}) as stream:
        next(iter(stream))
        with pytest.raises(anthropic.InternalServerError) as caught:
            client.messages.create(**ASKED)
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
    assert "Retry-After" in caught.value.response.headers


def test_a_dead_engine_is_an_error_of_the_api(serve: Callable[..., Served]) -> None:
    server = serve(FakeEngine(fail_at_step=3))
    long = {**ASKED, "max_tokens": 200}
    text = server.http.post(ANTHROPIC_PATH, json=long | {"stream": True}).text
    name, data = text.rstrip().split("\n\n")[-1].split("\n")
    body = json.loads(data.removeprefix("data: "))
    assert name == "event: error" and ErrorResponse.model_validate(body)
    assert body["error"]["type"] == "api_error" and "device is gone" in body["error"]["message"]
    check_form(server.http.post(ANTHROPIC_PATH, json=long), 503, "api_error")
