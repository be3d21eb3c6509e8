"""Every error is one OpenAI error body that says what is wrong; the server goes on."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from fake_server import Served, build_service
from probe import wait_for

from serve.app import create_app

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
IMAGE = [{"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}]

BAD_COMPLETIONS = {
    "temperature": {"temperature": -1},
    "n": {"n": 0},
    "seed": {"seed": 2**63},
    "max_tokens": {"max_tokens": 0},
    "stop": {"stop": [""]},
    "stop_token_ids": {"stop_token_ids": [2**31]},
    "prompt": {"prompt": []},
    "no tokens": {"prompt": ""},
    "can't be encoded": {"prompt": "\u00e9"},
    "token ids": {"prompt": [5, 128]},
    "context length": {"prompt": "a" * 256},
    "max_tokens is 250": {"prompt": "a" * 7, "max_tokens": 250},
    "exclamation": {"prompt": "a!"},
    "stream_options": {"stream_options": {"include_usage": True}},
    "best_of": {"best_of": 2},
    "logprobs": {"logprobs": 21},
    "prompt_logprobs": {"prompt_logprobs": -1},
    "logprobs_mode": {"logprobs_mode": "raw_logits"},
    "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True},
    "suffix": {"suffix": "x"},
    "cache_salt": {"cache_salt": ""},
    "logit_bias": {"logit_bias": {"5": 101}},
    "allowed_token_ids": {"allowed_token_ids": []},
    "bad_words": {"bad_words": [" "]},
    "at most 128 spellings": {"bad_words": [f"word{i}" for i in range(65)]},
    "repetition_penalty": {"repetition_penalty": 0},
    "speculative": {"speculative": {"num_tokens": -1}},
    "response_format": {"response_format": {"type": "xml"}},
}
BAD_CHATS = {
    "messages": {"messages": []},
    "takes no images": {"messages": [{"role": "user", "content": IMAGE}]},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "tool_choice": {"tool_choice": "required"},
    "top_logprobs": {"top_logprobs": 2},
    "chat_template": {"chat_template": "{{ messages }}"},
    "role": {"messages": [{"content": "x"}]},
}


def check_form(error: dict[str, Any], kind: str = "invalid_request_error") -> dict[str, Any]:
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == kind
    return error


@pytest.mark.parametrize("naming", BAD_COMPLETIONS)
def test_bad_completion_is_400_that_names_the_reason(fake: Served, naming: str) -> None:
    body = {"prompt": "abc", **BAD_COMPLETIONS[naming]}
    assert naming in check_form(fake.refusal(COMPLETIONS, body))["message"]
    assert not fake.engine.running
    fake.ask(COMPLETIONS, prompt="abc")


@pytest.mark.parametrize("naming", BAD_CHATS)
def test_bad_chat_is_400_that_names_the_reason(fake: Served, naming: str) -> None:
    error = check_form(fake.refusal(CHAT, {"messages": HELLO, **BAD_CHATS[naming]}))
    assert naming in error["message"]


def test_body_that_is_no_json_object_is_400(fake: Served) -> None:
    paths = (COMPLETIONS, CHAT, "/tokenize", "/generate", "/start_profile")
    bad = (b"{", b"", b"[]", b'{"prompt": "a", "temperature": NaN}')
    deep = [(path, b"[" * 100_000) for path in paths]
    for path, content in (*((COMPLETIONS, content) for content in bad), *deep):
        headers = {"Content-Type": "application/json"}
        answer = fake.http.post(path, content=content, headers=headers)
        assert answer.status_code == 400, content[:50]
        check_form(answer.json()["error"])


def test_every_endpoint_has_a_name_of_its_own_in_the_description(fake: Served) -> None:
    operations = fake.http.get("/openapi.json").json()["paths"]
    ids = [operation["operationId"] for path in operations.values() for operation in path.values()]
    assert len(set(ids)) == len(ids) > 10


def test_openais_client_knows_unknown_models_and_context_overflow(fake: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        fake.openai.completions.create(model="gpt-9", prompt="a")
    with pytest.raises(openai.BadRequestError) as caught:
        fake.openai.completions.create(model="fake", prompt="a" * 300)
    assert caught.value.code == "context_length_exceeded"


def test_unknown_path_and_method_have_error_bodies(fake: Served) -> None:
    for path, status in (("/v1/nothing", 404), (COMPLETIONS, 405)):
        answer = fake.http.get(path)
        assert answer.status_code == status
        check_form(answer.json()["error"])


def test_one_refused_sibling_refuses_the_request_and_frees_the_others(fake: Served) -> None:
    before = len(fake.engine.cancelled)
    assert "exclamation" in fake.refusal(COMPLETIONS, {"prompt": ["ab", "c!"]})["message"]
    assert fake.engine.running == {} and len(fake.engine.cancelled) == before + 1


def unavailable(answer: httpx.Response) -> str:
    """The message of a 503."""
    assert answer.status_code == 503, answer.text
    return check_form(answer.json()["error"], "server_error")["message"]


def test_nothing_is_served_before_warm_up(serve) -> None:
    engine = FakeEngine()
    engine.warm.clear()
    server: Served = serve(engine, wait_until_ready=False)
    assert unavailable(server.http.get("/health"))
    answer = server.http.post(COMPLETIONS, json={"prompt": "a"})
    assert "starting" in unavailable(answer) and int(answer.headers["Retry-After"]) > 0
    engine.warm.set()
    wait_for(lambda: server.http.get("/health").status_code == 200)
    server.ask(COMPLETIONS, prompt="a")


def test_dead_engine_fails_who_waits_and_health(serve) -> None:
    server: Served = serve(FakeEngine(fail_at_step=3))
    body = {"prompt": "a", "max_tokens": 100}
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(server.http.post, COMPLETIONS, json=body) for _ in range(3)]
        assert all("engine" in unavailable(answer.result()) for answer in asked)
    unavailable(server.http.get("/health"))
    unavailable(server.http.post(COMPLETIONS, json={"prompt": "a"}))


def test_request_that_comes_while_the_engine_dies_is_refused() -> None:
    async def ask() -> list[httpx.Response]:
        engine = FakeEngine(fail_at_step=1)
        engine.go.clear()
        app = create_app(build_service(engine))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://fake") as http,
        ):
            while (await http.get("/health")).status_code != 200:
                await asyncio.sleep(0.005)
            first = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": "a"}))
            while not engine.running:
                await asyncio.sleep(0.005)
            second = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": "a"}))
            await asyncio.sleep(0.05)
            engine.go.set()
            return list(await asyncio.wait_for(asyncio.gather(first, second), 5))

    for answer in asyncio.run(ask()):
        assert "engine failed" in unavailable(answer)


def test_engine_death_within_a_stream_is_an_error_event(serve) -> None:
    server = serve(FakeEngine(fail_at_step=3))
    body = {"prompt": "a", "max_tokens": 100, "stream": True}
    events = server.http.post(COMPLETIONS, json=body).text.split("\n\n")
    assert '"error"' in events[-3] and "device is gone" in events[-3]
    assert events[-2] == "data: [DONE]"
