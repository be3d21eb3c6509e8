"""The server and eagle3-generate over a real engine with a tiny random pair of models."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from fake_server import Served

from serve.generate.cli import main as generate_main

pytestmark = pytest.mark.xdist_group("served pair")

PROMPT = list(range(40, 60))


FLAGS = ["--bad-words", "the", "--logit-bias", '{"41": 2.5, "50": -100}', "--ignore-eos"]
FLAGS += ["--repetition-penalty", "1.2", "--presence-penalty", "0.4", "--frequency-penalty", "0.3"]
SAME_OPTIONS = {
    "bad_words": ["the"],
    "logit_bias": {"41": 2.5, "50": -100},
    "ignore_eos": True,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
}


@pytest.mark.parametrize(
    ("temperature", "flags", "options"),
    [(0.0, [], {}), (1.0, FLAGS, SAME_OPTIONS)],
    ids=["greedy", "options"],
)
def test_speculative_server_answers_as_plain_eagle3_generate(
    server: Served,
    target_directory: Path,
    capsys: pytest.CaptureFixture[str],
    temperature: float,
    flags: list[str],
    options: dict[str, object],
) -> None:
    argv = [str(target_directory), "--json", "--raw", "--prompt", "hello there", "--top-p", "0.9"]
    argv += ["--seed", "7", "--max-tokens", "24", "--max-model-len", "256"]
    assert generate_main([*argv, *flags, "--temperature", str(temperature)]) == 0
    plain = json.loads(capsys.readouterr().out)
    body = {"prompt": "hello there", "max_tokens": 24, "top_p": 0.9, "seed": 7}
    body |= {"temperature": temperature, "return_token_ids": True, **options}
    choice = server.http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["token_ids"] == plain["token_ids"]
    assert (choice["text"], choice["seed"]) == (plain["text"], plain["seed"])
    assert choice["spec"]["accepted"] > 0 and set(plain["accepted"]) <= {0}


def test_streamed_chat_is_the_whole_answer(server: Served) -> None:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 24,
        "temperature": 0,
        "return_token_ids": True,
    }
    whole = server.http.post("/v1/chat/completions", json=body).json()
    text = server.http.post("/v1/chat/completions", json=body | {"stream": True}).text
    events = [json.loads(e.removeprefix("data: ")) for e in text.split("\n\n")[:-2]]
    pieces = [event["choices"][0] for event in events]
    joined = "".join(piece["delta"]["content"] for piece in pieces)
    assert joined == whole["choices"][0]["message"]["content"]
    assert [i for p in pieces for i in p["token_ids"]] == whole["choices"][0]["token_ids"]
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]


def test_a_message_is_the_chats_answer(server: Served) -> None:
    asked = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24}
    for seed in range(3):
        body = asked | {"seed": seed}
        chat = server.http.post("/v1/chat/completions", json=body).json()
        message = server.http.post("/v1/messages", json=body).json()
        streamed = server.http.post("/v1/messages", json=body | {"stream": True}).text
        lines = [line for line in streamed.splitlines() if '"text_delta"' in line]
        texts = [json.loads(line.removeprefix("data: "))["delta"]["text"] for line in lines]
        said = chat["choices"][0]["message"]["content"]
        assert said and [block["text"] for block in message["content"]] == [said]
        assert "".join(texts) == said
        assert message["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]


OPTIONS = {
    "logit_bias": {"41": 2.5, "50": -100},
    "bad_words": ["the", "hello there"],
    "repetition_penalty": 1.2,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_options_answer_the_same_with_and_without_drafts(
    server: Served, temperature: float
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "seed": 3, "return_token_ids": True, **OPTIONS}
    body |= {"temperature": temperature, "ignore_eos": True}

    def ask(**more: object) -> dict:
        return server.http.post("/v1/completions", json=body | more).json()["choices"][0]

    drafted, plain = ask(), ask(speculative={"num_tokens": 0})
    assert drafted["token_ids"] == plain["token_ids"]
    assert 50 not in plain["token_ids"] and len(plain["token_ids"]) == 40
    assert drafted["spec"]["rounds"] <= plain["spec"]["rounds"] == 39
    assert plain["spec"]["accepted"] == 0
    assert ask(speculative={"num_tokens": 99})["spec"] == drafted["spec"]
    neutral = ask(**{name: None for name in OPTIONS})
    assert neutral["token_ids"] != plain["token_ids"]


def test_only_allowed_ids_are_put_out(server: Served) -> None:
    allowed = [40, 45, 60, 61]
    body = {"prompt": PROMPT, "max_tokens": 30, "allowed_token_ids": allowed}
    choice = server.http.post("/v1/completions", json=body | {"return_token_ids": True}).json()
    assert set(choice["choices"][0]["token_ids"]) <= set(allowed)


def test_a_request_without_a_seed_gives_the_same_again_with_the_seed_it_was_told(
    server: Served,
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 20, "return_token_ids": True}
    first = server.http.post("/v1/completions", json=body).json()
    again = server.http.post("/v1/completions", json=body | {"seed": first["seed"]}).json()
    assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]


def test_options_that_bar_every_token_are_an_error_of_that_request(server: Served) -> None:
    token = "a"
    ids = server.service.tokenizer.encode(token)
    body = {"prompt": PROMPT, "allowed_token_ids": ids, "bad_words": [token]}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "bar every token" in answer.json()["error"]["message"]
    streamed = server.http.post("/v1/completions", json=body | {"stream": True}).text
    assert "bar every token" in streamed and streamed.endswith("data: [DONE]\n\n")
    good = server.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2})
    assert good.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
def test_a_flushed_cache_finds_nothing(server: Served, path: str) -> None:
    body = {"prompt": [41] * 100, "max_tokens": 2}

    def cached_tokens() -> int:
        usage = server.http.post("/v1/completions", json=body).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    cached_tokens()
    assert cached_tokens() > 0
    assert server.http.post(path).status_code == 200
    stats = server.service.engine.stats
    assert stats.free_pages == stats.total_pages
    assert cached_tokens() == 0


def test_hanging_up_returns_every_page(server: Served) -> None:
    body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "stream": True, "n": 4}
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
        assert server.service.engine.stats.free_pages < server.service.engine.stats.total_pages
    deadline = time.monotonic() + 5
    while (stats := server.service.engine.stats).free_pages < stats.total_pages:
        assert time.monotonic() < deadline, f"pages were not returned: {stats}"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "body, naming",
    [
        ({"prompt": [40] * 256}, "context length"),
        ({"prompt": [40, 576]}, "576"),
        ({"prompt": PROMPT, "stop_token_ids": list(range(65))}, "at most 64"),
        ({"prompt": PROMPT, "logit_bias": {"576": 1}}, "logit_bias"),
        ({"prompt": PROMPT, "temperature": -1}, "temperature"),
        ({"prompt": PROMPT, "guided_json": {"type": "sizes"}}, "Invalid type: sizes"),
        ({"prompt": PROMPT, "guided_json": False}, "Unsatisfiable"),
        ({"prompt": PROMPT, "guided_regex": "[^\\x00-\\U0010ffff]"}, "no answer satisfies"),
        ({"prompt": PROMPT, "guided_json": {"enum": ["x" * 2**20]}}, "262144 bytes"),
    ],
)
def test_bad_requests_are_refused_and_the_server_goes_on(
    server: Served, body: dict, naming: str
) -> None:
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 400 and naming in answer.json()["error"]["message"]
    good = server.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2})
    assert good.json()["usage"]["completion_tokens"] == 2


SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer"}, "kind": {"enum": ["big", "small"]}},
    "required": ["size", "kind"],
    "additionalProperties": False,
}


def test_a_schema_holds_with_and_without_drafts(server: Served) -> None:
    pytest.importorskip("llguidance")
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    }
    texts = []
    for seed, drafts in ((0, 3), (0, 0), (1, 3), (1, 0)):
        more = {"seed": seed, "speculative": {"num_tokens": drafts}}
        answer = server.http.post("/v1/chat/completions", json=body | more).json()
        value = json.loads(answer["choices"][0]["message"]["content"])
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert set(value) == {"size", "kind"} and value["kind"] in ("big", "small")
        texts.append(answer["choices"][0]["message"]["content"])
    assert texts[0] == texts[1] and texts[2] == texts[3]


def test_a_required_tool_is_called_with_arguments_by_its_schema(server: Served) -> None:
    pytest.importorskip("llguidance")
    tool = {"type": "function", "function": {"name": "measure", "parameters": SCHEMA}}
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "tools": [tool]}
    asked |= {"max_tokens": 200, "seed": 2}
    required: dict[str, Any] = asked | {"tool_choice": "required", "parallel_tool_calls": False}
    named: dict[str, Any] = asked | {
        "tool_choice": {"type": "function", "function": {"name": "measure"}}
    }
    for body, finish in ((required, "tool_calls"), (named, "stop")):
        whole = server.openai.chat.completions.create(model="fake", **body)
        assert whole.choices[0].finish_reason == finish
        (call,) = whole.choices[0].message.tool_calls
        assert call.id.startswith("functions.measure:") and call.function.name == "measure"
        assert set(json.loads(call.function.arguments)) == {"size", "kind"}
        stream = server.openai.chat.completions.create(model="fake", **body, stream=True)
        deltas = [piece.choices[0].delta for piece in stream if piece.choices]
        streamed = [piece.function for delta in deltas for piece in delta.tool_calls or ()]
        arguments = [piece.arguments or "" for piece in streamed if piece]
        assert "".join(arguments) == call.function.arguments
