"""What the engine is asked, and answers, is what /v1/chat/completions asks and gets."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from called_tools import ANSWERS, CHAT_TOOLS, THINKING
from conversations import SAME, TOOLS
from fake_server import Served
from scripted_engine import AnyGrammars, ScriptedEngine

from serve.responses.tools import Absent, say_absent

MORE: dict[str, Any] = {"seed": 11, "max_output_tokens": 40}
CHAT_MORE: dict[str, Any] = {"seed": 11, "max_completion_tokens": 40}


@pytest.mark.parametrize("chat_format", ANSWERS)
def test_the_engine_gets_the_same_request(say, chat_format: str) -> None:
    server = say("hello", chat_format=chat_format, grammars=AnyGrammars())
    assert isinstance(server.engine, ScriptedEngine)
    for name, (body, chat) in SAME.items():
        answers = [
            server.http.post("/v1/responses", json=body | MORE),
            server.http.post("/v1/chat/completions", json=chat | CHAT_MORE),
        ]
        assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
        ours, chats = server.engine.requests[-2:]
        assert replace(ours, request_id="") == replace(chats, request_id=""), name


@pytest.mark.xdist_group("served pair")
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_real_engine_answers_the_same(server: Served, temperature: float) -> None:
    for name in ("text", "instructions", "a loop"):
        body, chat = SAME[name]
        more = {"temperature": temperature, "seed": 5}
        ours = server.http.post("/v1/responses", json=body | MORE | more).json()
        chats = server.http.post("/v1/chat/completions", json=chat | CHAT_MORE | more).json()
        text = "".join(p["text"] for i in ours["output"] for p in i.get("content", []))
        message = chats["choices"][0]["message"]
        assert text == message.get("reasoning", "") + (message["content"] or "")
        assert text or ours["usage"]["output_tokens"] == 1
        assert ours["usage"]["input_tokens"] == chats["usage"]["prompt_tokens"]
        assert ours["usage"]["output_tokens"] == chats["usage"]["completion_tokens"]
        assert ours["seed"] == chats["seed"] == 5


@pytest.mark.parametrize("chat_format", ANSWERS)
def test_an_answer_is_read_the_same(say, chat_format: str) -> None:
    server = say(ANSWERS[chat_format], chat_format=chat_format)
    ask = {"input": "How is Oslo?", "tools": TOOLS, **THINKING}
    chat = {"messages": [{"role": "user", "content": "How is Oslo?"}], "tools": CHAT_TOOLS}
    ours = server.http.post("/v1/responses", json=ask).json()
    chats = server.http.post("/v1/chat/completions", json=chat | THINKING).json()
    reasoning, message, *calls = ours["output"]
    expected = chats["choices"][0]["message"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": expected["reasoning"]}]
    assert message["content"][0]["text"] == expected["content"] == "One moment."
    assert [(c["name"], json.loads(c["arguments"])) for c in calls] == [
        (c["function"]["name"], json.loads(c["function"]["arguments"]))
        for c in expected["tool_calls"]
    ]
    assert len(calls) == 2 and ours["status"] == "completed"


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "bad"])
def test_reasoning_effort_does_what_it_does_in_a_chat(say, effort: str) -> None:
    server = say("hello")
    assert isinstance(server.engine, ScriptedEngine)
    body, chat = SAME["text"]
    ours = server.http.post("/v1/responses", json=body | {"reasoning": {"effort": effort}})
    chats = server.http.post("/v1/chat/completions", json=chat | {"reasoning_effort": effort})
    assert ours.status_code == chats.status_code
    if ours.status_code == 200:
        first, second = server.engine.requests[-2:]
        assert first.prompt_ids == second.prompt_ids
    else:
        assert ours.json()["error"]["param"] == "reasoning.effort"
        assert "reasoning.effort" in ours.json()["error"]["message"]


def test_of_tools_that_nobody_runs_the_model_is_told_nothing_and_the_client_that(
    say, caplog: pytest.LogCaptureFixture
) -> None:
    say_absent.cache_clear()
    server = say("hello")
    assert isinstance(server.engine, ScriptedEngine)
    without = server.http.post("/v1/responses", json={"input": "hello", "tools": TOOLS}).json()
    for kind in get_args(Absent):
        absent = {"type": kind, "external_web_access": True}
        body = {"input": "hello", "tools": [absent, *TOOLS]}
        assert server.http.post("/v1/responses", json=body).json()["tools"] == without["tools"]
        prompts = [request.prompt_ids for request in server.engine.requests]
        assert prompts[0] == prompts[-1]
        assert f"of type {kind} are left out" in caplog.text
        alone = {"input": "hello", "tools": [absent], "tool_choice": "required"}
        assert "tools to choose from" in server.http.post("/v1/responses", json=alone).text
