"""Arguments of calls that are no JSON object, or are too deep for a template, end no conversation.

A call that the server's own limit cut is one of them.
"""

import json
from typing import Any

import pytest
from called_tools import ANSWERS, CHAT_TOOLS
from told import ITEMS, MODEL, OSLO, USER, Say, asked, called, chat_call, result, shown, with_room


def nested(depth: int) -> str:
    """JSON of objects inside each other."""
    return '{"a": ' * depth + "1" + "}" * depth


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
    (nested(900), {"INVALID_JSON": nested(900)}),
    (json.loads(nested(900)), {"INVALID_JSON": nested(900)}),
]


def test_arguments_that_are_no_object_end_no_conversation(say: Say) -> None:
    """On a template that reads objects, in every protocol and behind a stored response."""
    server = with_room(say("Fine.", chat_format="minimax_m2", model=MODEL))
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


@pytest.mark.parametrize("chat_format", ["kimi_k2", "minimax_m2"])
def test_objects_as_deep_as_a_body_may_be_end_no_conversation(say: Say, chat_format: str) -> None:
    """Each protocol shows an object that is too deep for templates as text, in the same prompt."""
    server = with_room(say("Fine.", chat_format=chat_format, model=MODEL))
    for depth in (100, 200, 300, 600, 950):
        call = json.dumps({**called(), "tool_calls": [chat_call("x", "DEEP")]})
        item = json.dumps(ITEMS["a"] | {"arguments": "DEEP"})
        use = {"type": "tool_use", "id": "x", "name": "weather", "input": "DEEP"}
        turn = json.dumps({"role": "assistant", "content": [use]})
        prompts = set[str]()
        for path, field, message in (
            ("/v1/chat/completions", "messages", call),
            ("/v1/responses", "input", item),
            ("/v1/messages", "messages", turn),
        ):
            history = json.dumps([USER, "TURN", USER]).replace('"TURN"', message)
            limit = "max_output_tokens" if field == "input" else "max_tokens"
            body = f'{{"{field}": {history}, "{limit}": 9}}'.replace('"DEEP"', nested(depth))
            header = {"Content-Type": "application/json"}
            answer = server.http.post(path, content=body, headers=header)
            assert answer.status_code == 200, (path, depth, answer.text)
            prompts.add(shown(server))
        assert len(prompts) == 1 and nested(depth - 1) in prompts.pop()


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
