"""Every error is one OpenAI error body that says what is wrong; the server goes on."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from fake_server import HELLO, Served, served_apart, until
from probe import wait_for

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES, GENERATE = "/v1/messages", "/generate"
IMAGE = [{"type": "image_url", "image_url": {"url": "http://example.com/a.png"}}]

BAD: dict[str, list[tuple[dict[str, Any], str]]] = {
    COMPLETIONS: [
        ({"temperature": -1}, "temperature"),
        ({"n": 0}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "no tokens"),
        ({"prompt": "\u00e9"}, "can't be encoded"),
        ({"prompt": [5, 128]}, "token ids"),
        ({"prompt": "a" * 256}, "context length"),
        ({"prompt": "a" * 7, "max_tokens": 250}, "max_tokens is 250"),
        ({"prompt": "a!"}, "exclamation"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"logprobs_mode": "raw_logits"}, "logprobs_mode"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        ({"suffix": "x"}, "suffix"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": [f"word{i}" for i in range(65)]}, "at most 128 spellings"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"speculative": {"num_tokens": -1}}, "speculative"),
        ({"response_format": {"type": "xml"}}, "response_format"),
    ],
    CHAT: [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "takes no images"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"messages": [{"content": "x"}]}, "role"),
    ],
    MESSAGES: [
        ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "budget_tokens"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "name": "f"}}, "tool_choice"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"stop_sequences": ["a" * 5000]}, "stop_sequences"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "b"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "b"}]}, "role"),
        ({"messages": []}, "messages"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"name": "f", "input_schema": {}}]}, "tools"),
    ],
    GENERATE: [
        ({}, "one of text and input_ids"),
        ({"text": "a", "input_ids": [1]}, "one of text and input_ids"),
        ({"text": []}, "expected a prompt"),
        ({"text": ""}, "no tokens"),
        ({"input_ids": []}, "expected a prompt"),
        ({"input_ids": [5, 128]}, "token ids"),
        ({"text": "a" * 256}, "context length"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid must have 2 entries"),
        ({"text": ["a", "b"], "sampling_params": [{}, {}, {}]}, "sampling_params must have 2"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 0}}, "max_tokens"),
        ({"text": "a", "sampling_params": {"stop_regex": "x"}}, "stop_regex"),
        ({"text": "a", "sampling_params": {"json_schema": "{}", "regex": "a"}}, "give only one of"),
        ({"text": "a", "sampling_params": {"regex": "a"}}, "grammar"),
        ({"text": "a", "image_data": ["a.png"]}, "image_data"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "top_logprobs_num": 99}, "top_logprobs_num"),
    ],
}
"""Fields that make a body bad, and words of the error."""
GOOD = {
    COMPLETIONS: {"prompt": "abc"},
    CHAT: {"messages": HELLO},
    MESSAGES: {"messages": HELLO, "max_tokens": 1},
    GENERATE: {},
}


def check_form(error: dict[str, Any], kind: str = "invalid_request_error") -> dict[str, Any]:
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == kind
    return error


@pytest.mark.parametrize("path", BAD)
def test_a_bad_body_is_400_that_names_the_reason(fake: Served, path: str) -> None:
    for fields, naming in BAD[path]:
        error = fake.refusal(path, GOOD[path] | fields)
        assert naming in error["message"], fields
        assert path == MESSAGES or check_form(error)
        assert not fake.engine.running
    fake.ask(COMPLETIONS, prompt="abc")


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


def test_one_refused_sibling_refuses_the_request_and_frees_the_others(fake: Served) -> None:
    before = len(fake.engine.cancelled)
    assert "exclamation" in fake.refusal(COMPLETIONS, {"prompt": ["ab", "c!"]})["message"]
    assert fake.engine.running == {} and len(fake.engine.cancelled) == before + 1


def unavailable(answer: httpx.Response) -> str:
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
        async with served_apart(engine) as (_, _, http):
            first = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": "a"}))
            await until(lambda: engine.running)
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
