"""What the model is shown of a conversation that clients tell in their own order, with ids, nulls
and arguments of their own: the prompt that it would have had from its own server."""

import json
import re
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
from called_tools import ANSWERS, CHAT_TOOLS, prompt_of
from chat_tokenizers import kimi, minimax
from fake_server import Served
from scripted_engine import ScriptedEngine

from serve.chat_format.format import choose_reading
from serve.openai.service import ModelInfo

MODEL = ModelInfo(("fake",), "/models/fake", 2**16)
Say = Callable[..., Served]
USER = {"role": "user", "content": "Weather?"}
OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'


def asked(server: Served, path: str, **body: Any) -> str:
    """The prompt of a request."""
    limit = {"max_tokens": 9} if path == "/v1/messages" else {}
    answer = server.http.post(path, json=limit | body)
    assert answer.status_code == 200, answer.text
    if server.service.reading.reader.name == "kimi_k2":
        return prompt_of(server)
    assert isinstance(server.engine, ScriptedEngine)
    return minimax().decode(server.engine.requests[-1].prompt_ids, skip_special=False)


def chat_call(call_id: Any, arguments: Any = OSLO, name: str = "weather") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*ids: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [chat_call(i) for i in ids], **more}


def result(call_id: Any, content: str = "7 degrees") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


# Items of Responses, a letter each, of which clients send any order.
ITEMS: dict[str, dict[str, Any]] = {
    "u": USER,
    "r": {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "I think."}]},
    "R": {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Thought."}]},
    "m": {"type": "message", "role": "assistant", "content": "One moment."},
    "n": {"type": "message", "role": "assistant", "content": " Still."},
    "a": {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": OSLO},
    "b": {"type": "function_call", "call_id": "call_b", "name": "weather", "arguments": ROME},
    "A": {"type": "function_call_output", "call_id": "call_a", "output": "7 degrees"},
    "B": {"type": "function_call_output", "call_id": "call_b", "output": "20 degrees"},
}
TURNS: list[tuple[str, str]] = [
    ("uamA", "u[ma]A"),
    ("uarA", "u[ra]A"),
    ("uaRA", "u[a]A"),
    ("uarmA", "u[rma]A"),
    ("umraA", "u[rma]A"),
    ("uamrnA", "u[rmna]A"),
    ("urambnAB", "u[rmnab]AB"),
    ("uabmBA", "u[mab]BA"),
    ("uabAmB", "u[mab]AB"),
    ("uabArmBuaA", "u[rmab]ABu[a]A"),
    ("uaAbB", "u[a]A[b]B"),
    ("uaAmbB", "u[a]A[mb]B"),
    ("uabAmu", "u[ab]A[m]u"),
    ("umnu", "u[m][n]u"),
]
"""Orders of items, and the turns of the model that they are."""


def as_chat(turns: str) -> list[dict[str, Any]]:
    """The messages of a chat for turns in brackets."""
    messages: list[dict[str, Any]] = []
    for part in re.findall(r"\[\w+\]|\w", turns):
        item = ITEMS[part[0]] if part in ITEMS else {}
        if part == "u":
            messages.append(USER)
        elif item:
            messages.append(result(item["call_id"], item["output"]))
        else:
            texts = [ITEMS[letter]["content"] for letter in part if letter in "mn"]
            calls = [ITEMS[letter] for letter in part if letter in "ab"]
            told = [chat_call(c["call_id"], c["arguments"]) for c in calls]
            said = {"role": "assistant", "content": "".join(texts)}
            said |= {"reasoning": "I think."} if "r" in part else {}
            messages.append(said | ({"tool_calls": told} if told else {}))
    return messages


@pytest.mark.parametrize("chat_format", ["kimi_k2", "minimax_m2"])
def test_what_the_assistant_says_between_a_call_and_its_result_is_the_calls_turn(
    say: Say, chat_format: str
) -> None:
    server = say("Fine.", chat_format=chat_format)
    for order, turns in TURNS:
        items = [ITEMS[letter] for letter in order]
        expected = asked(server, "/v1/chat/completions", messages=as_chat(turns))
        assert asked(server, "/v1/responses", input=items) == expected, order
        apart = as_chat("".join(f"[{i}]" if i in "rmnab" else i for i in order.replace("R", "")))
        assert asked(server, "/v1/chat/completions", messages=apart) == expected, order


def test_turns_of_one_role_are_one_turn_of_messages(say: Say) -> None:
    server = say("Fine.")
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    told = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "7 degrees"}
    blocks: list[tuple[str, dict[str, Any]]] = [
        ("user", {"type": "text", "text": "Weather?"}),
        ("user", {"type": "text", "text": " In Oslo."}),
        ("assistant", {"type": "thinking", "thinking": "I think.", "signature": ""}),
        ("assistant", use),
        ("assistant", {"type": "text", "text": "One moment."}),
        ("user", {"type": "text", "text": "Hurry."}),
        ("user", told),
    ]
    apart = [{"role": role, "content": [block]} for role, block in blocks]
    runs = [
        {"role": role, "content": [block for _, block in run]}
        for role, run in groupby(blocks, key=lambda pair: pair[0])
    ]
    assert asked(server, "/v1/messages", messages=apart) == (
        asked(server, "/v1/messages", messages=runs)
    )
    assert prompt_of(server).count("<|im_assistant|>") == 2


IDS: dict[str, tuple[list[Any], str]] = {
    "foreign": (["call_9f3a", "call_77b1"], "01"),
    "of other protocols": (["toolu_01AbC", "fc_2"], "01"),
    "cleaned": (["functions_weather_0", "functions_weather_1"], "01"),
    "the model's own": (["functions.weather:0", "functions.weather:1"], "01"),
    "later ones of the model's": (["functions.weather:4", "functions.weather:7"], "47"),
    "mixed": (["functions.weather:0", "call_1", "functions.weather:2"], "012"),
    "taken": (["call_1", "functions.weather:0"], "01"),
    "begun again": (["functions.weather:0", "functions.weather:0"], "01"),
    "one for all": (["x", "x", "x"], "012"),
    "another function's": (["functions.time:3", "functions.weather:00"], "01"),
    "none": (["", None], "01"),
}
"""Ids that clients send for calls of `weather`, and the INDEX that each gets."""


@pytest.mark.parametrize("case", IDS)
def test_kimi_is_shown_ids_that_name_the_function(say: Say, case: str) -> None:
    """One turn after the other, and all calls in one turn, answered in order or backwards."""
    server, (ids, indices) = say("Fine."), IDS[case]
    shown = [f"functions.weather:{index}" for index in indices]

    def prompt(*messages: dict[str, Any]) -> str:
        text = asked(server, "/v1/chat/completions", messages=[USER, *messages])
        tokens = server.http.post("/tokenize", json={"messages": [USER, *messages]}).json()
        assert isinstance(server.engine, ScriptedEngine)
        assert tokens["tokens"] == server.engine.requests[-1].prompt_ids
        assert re.findall(r"call_begin\|>(.*?)<\|tool_call_arg", text) == shown
        return text

    turns = [m for i in ids for m in (called(i), result(i))]
    assert re.findall(r"Return of (.*)\n", prompt(*turns)) == shown
    at_once = prompt(called(*ids), *[result(i, str(n)) for n, i in enumerate(ids)])
    assert re.findall(r"Return of (.*)\n(\d)", at_once) == [
        (i, str(n)) for n, i in enumerate(shown)
    ]
    if len(set(map(str, ids))) == len(ids):
        backwards = prompt(called(*ids), *[result(i) for i in reversed(ids)])
        assert re.findall(r"Return of (.*)\n", backwards) == shown[::-1]


def test_results_without_a_call_keep_their_ids_and_nobody_gets_them(say: Say) -> None:
    server = say("Fine.")
    messages = [USER, result("functions.weather:0"), result("call_1"), called("call_1")]
    messages += [result("call_1"), result("call_1") | {"tool_calls": []}, USER, called("call_1")]
    text = asked(server, "/v1/chat/completions", messages=messages)
    own = "functions.weather"
    assert re.findall(r"Return of (.*)\n", text) == [f"{own}:0", "call_1", f"{own}:1", f"{own}:1"]
    assert re.findall(r"call_begin\|>(.*?)<\|tool_call_arg", text) == [f"{own}:1", f"{own}:2"]


def test_ids_are_known_through_every_protocol_and_clients_get_back_their_own(say: Say) -> None:
    server = say("Fine.")
    items = [ITEMS[letter] for letter in "uabAB"]
    chat = [USER, {**called("x"), "tool_calls": [chat_call("x"), chat_call("y", ROME)]}]
    chat += [result("x"), result("y", "20 degrees")]
    expected = asked(server, "/v1/chat/completions", messages=chat)
    assert "functions.weather:0" in expected and "## Return of functions.weather:1" in expected
    first = server.http.post("/v1/responses", json={"input": items}).json()
    assert prompt_of(server) == expected
    listed = server.http.get(f"/v1/responses/{first['id']}/input_items?order=asc").json()["data"]
    assert [i["call_id"] for i in listed if "call_id" in i] == ["call_a", "call_b"] * 2
    more = {"input": "And?", "previous_response_id": first["id"]}
    assert "## Return of functions.weather:1" in asked(server, "/v1/responses", **more)
    uses = [
        {"type": "tool_use", "id": i, "name": "weather", "input": json.loads(arguments)}
        for i, arguments in (("toolu_1", OSLO), ("toolu_2", ROME))
    ]
    told = [
        {"type": "tool_result", "tool_use_id": i, "content": content}
        for i, content in (("toolu_1", "7 degrees"), ("toolu_2", "20 degrees"))
    ]
    turns = [USER, {"role": "assistant", "content": uses}, {"role": "user", "content": told}]
    assert asked(server, "/v1/messages", messages=turns) == expected


def test_calls_of_a_history_do_not_depend_on_whether_answers_are_read(say: Say) -> None:
    prompts = [
        asked(
            say("Fine.", reading=choose_reading(kimi(), tool_call_parser=parser)),
            "/v1/chat/completions",
            messages=[USER, called("call_1"), result("call_1")],
        )
        for parser in ("auto", "none")
    ]
    assert prompts[0] == prompts[1] and "functions.weather:0" in prompts[0]


def test_a_template_without_ids_is_given_none_of_kimis(say: Say) -> None:
    server = say("Fine.", chat_format="minimax_m2")
    messages = [USER, called("call_1"), result("call_1")]
    assert "functions." not in asked(server, "/v1/chat/completions", messages=messages)


ARGUMENTS: list[tuple[Any, dict[str, Any]]] = [
    ('{"city": "Os', {"INVALID_JSON": '{"city": "Os'}),
    ('{"city": "Oslo"', {"INVALID_JSON": '{"city": "Oslo"'}),
    ('{"city": "Oslo\nRome"}', {"city": "Oslo\nRome"}),
    (json.dumps(OSLO), {"city": "Oslo"}),
    (json.dumps(json.dumps(OSLO)), {"city": "Oslo"}),
    (json.dumps('{"city": "Os'), {"INVALID_JSON": json.dumps('{"city": "Os')}),
    ("", {}),
    (" \n", {}),
    ("null", {}),
    (None, {}),
    ("[1, 2]", {"INVALID_JSON": "[1, 2]"}),
    ([1, 2], {"INVALID_JSON": "[1, 2]"}),
    ("7", {"INVALID_JSON": "7"}),
    ("Oslo", {"INVALID_JSON": "Oslo"}),
    (f"{OSLO} and more", {"INVALID_JSON": f"{OSLO} and more"}),
    ('{"degrees": NaN}', {"INVALID_JSON": '{"degrees": NaN}'}),
    ('{"degrees": 1e999}', {"INVALID_JSON": '{"degrees": 1e999}'}),
    ({"city": "Oslo"}, {"city": "Oslo"}),
]


def test_arguments_that_are_no_object_end_no_conversation(say: Say) -> None:
    """On a template that reads objects, in every protocol and behind a stored response."""
    server = say("Fine.", chat_format="minimax_m2", model=MODEL)
    for arguments, read in ARGUMENTS:
        call = {**called(), "tool_calls": [chat_call("x", arguments)]}
        prompt = asked(server, "/v1/chat/completions", messages=[USER, call, result("x", "7")])
        for key, value in read.items():
            assert f'<parameter name="{key}">{value}</parameter>' in prompt
        assert prompt.count("<parameter") == len(read)
        items = [USER, ITEMS["a"] | {"arguments": arguments}, ITEMS["A"] | {"output": "7"}]
        assert asked(server, "/v1/responses", input=items) == prompt
        first = server.http.post("/v1/responses", json={"input": items[:2]}).json()
        more = {"input": items[2:], "previous_response_id": first["id"]}
        assert '<parameter name="' in asked(server, "/v1/responses", **more) or not read
        use = {"type": "tool_use", "id": "x", "name": "weather", "input": read}
        told = {"type": "tool_result", "tool_use_id": "x", "content": "7"}
        turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [told]}]
        assert asked(server, "/v1/messages", messages=[USER, *turns]) == prompt


def test_no_arguments_are_an_empty_object_to_kimi_too(say: Say) -> None:
    call = {**called(), "tool_calls": [chat_call("x", None)]}
    prompt = asked(say("Fine."), "/v1/chat/completions", messages=[USER, call, result("x")])
    assert "argument_begin|>{}<|tool_call_end|>" in prompt


def test_a_call_that_the_limit_cut_goes_back_as_it_came(say: Say) -> None:
    """At every length at which it may be cut, whole and behind a stored response."""
    server = say(ANSWERS["minimax_m2"], chat_format="minimax_m2", model=MODEL)
    lengths = set()
    for limit in range(20, 100, 3):
        body = {"messages": [USER], "tools": CHAT_TOOLS, "max_tokens": limit}
        said = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        calls = said.get("tool_calls") or []
        lengths.add(tuple(len(call["function"]["arguments"]) for call in calls))
        told = [result(call["id"]) for call in calls]
        asked(server, "/v1/chat/completions", **body | {"messages": [USER, said, *told, USER]})
        tools = [{"type": "function", **tool["function"]} for tool in CHAT_TOOLS]
        ask = {"input": [USER], "tools": tools, "max_output_tokens": limit}
        first = server.http.post("/v1/responses", json=ask).json()
        asked(server, "/v1/responses", **ask | {"previous_response_id": first["id"]})
    assert len(lengths) > 5


def test_arguments_encoded_twice_are_held_to_the_limit_of_a_body(say: Say) -> None:
    server = say("Fine.", chat_format="minimax_m2")
    many = json.dumps(json.dumps({str(n): 0 for n in range(2**17 + 1)}))
    call = {**called(), "tool_calls": [chat_call("x", many)]}
    answer = server.http.post("/v1/chat/completions", json={"messages": [USER, call]})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "too_many_values"
