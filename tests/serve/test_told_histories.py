"""Conversations that clients tell in their own order, with ids, nulls and arguments of their own,
give the prompt that the model would have had from its own server; nothing in them vanishes."""

import json
import re
from itertools import groupby
from typing import Any

import pytest
from called_tools import ANSWERS, CHAT_TOOLS, RESPONSE_TOOLS, prompt_of, saying
from chat_tokenizers import kimi, minimax, with_template
from fake_server import Serve, Served

from serve.chat_format.format import choose_reading
from serve.openai.service import ModelInfo

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
MODEL = ModelInfo(("fake",), "/models/fake", 2**16)
USER = {"role": "user", "content": "Weather?"}
OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'


def asked(server: Served, path: str, **body: Any) -> str:
    limit = {"max_tokens": 9} if path == MESSAGES else {}
    server.ask(path, **limit | body)
    return shown(server)


def shown(server: Served) -> str:
    if server.service.reading.reader.name == "kimi_k2":
        return prompt_of(server)
    return minimax().decode(server.engine.asked[-1].prompt_ids, skip_special=False)


def chat_call(call_id: Any, arguments: Any = OSLO, name: str = "weather") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(*ids: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [chat_call(i) for i in ids], **more}


def result(call_id: Any, content: str = "7 degrees") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


# Items of Responses, a letter each, of which clients send any order.
ITEMS: dict[str, dict[str, Any]] = {
    "u": USER,
    "d": {"role": "developer", "content": "In Celsius."},
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
    ("umdnu", "u[m]d[n]u"),
    ("uadA", "u[a]Ad"),
    ("uadmA", "u[ma]Ad"),
    ("uadbAdB", "u[ab]ABdd"),
    ("uaAdmu", "u[a]Ad[m]u"),
    ("uauA", "u[a]Au"),
    ("uamuA", "u[ma]Au"),
    ("uaumA", "u[a]Au[m]"),
    ("uaubAmB", "u[a]Au[mb]B"),
    ("uabuBuA", "u[ab]BAuu"),
]
"""Orders of items, and the turns of the model that they are."""


def as_chat(turns: str) -> list[dict[str, Any]]:
    """The messages of a chat for turns in brackets."""
    messages: list[dict[str, Any]] = []
    for part in re.findall(r"\[\w+\]|\w", turns):
        item = ITEMS[part[0]] if part in ITEMS else {}
        if part in "ud":
            messages.append(item | {"role": "user" if part == "u" else "system"})
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
    say: Serve, chat_format: str
) -> None:
    server = say("Fine.", chat_format=chat_format)
    for order, turns in TURNS:
        items = [ITEMS[letter] for letter in order]
        expected = asked(server, CHAT, messages=as_chat(turns))
        assert asked(server, RESPONSES, input=items) == expected, order
        apart = as_chat("".join(f"[{i}]" if i in "rmnab" else i for i in order.replace("R", "")))
        assert asked(server, CHAT, messages=apart) == expected, order


def test_turns_of_one_role_are_one_turn_of_messages(say: Serve) -> None:
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
    assert asked(server, MESSAGES, messages=apart) == (asked(server, MESSAGES, messages=runs))
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
def test_kimi_is_shown_ids_that_name_the_function(say: Serve, case: str) -> None:
    """One turn after the other, and all calls in one turn, answered in order or backwards."""
    server, (ids, indices) = say("Fine."), IDS[case]
    shown = [f"functions.weather:{index}" for index in indices]

    def prompt(*messages: dict[str, Any]) -> str:
        text = asked(server, CHAT, messages=[USER, *messages])
        tokens = server.ask("/tokenize", messages=[USER, *messages])
        assert tokens["tokens"] == server.engine.asked[-1].prompt_ids
        assert re.findall(r"call_begin\|>(.*?)<\|tool_call_arg", text) == shown
        return text

    turns = [m for i in ids for m in (called(i), result(i))]
    assert re.findall(r"Return of (.*)\n", prompt(*turns)) == shown
    at_once = prompt(called(*ids), *[result(i, str(n)) for n, i in enumerate(ids)])
    assert re.findall(r"Return of (.*)\n(\d)", at_once) == [
        (i, str(n)) for n, i in enumerate(shown)
    ]
    if all(ids) and len(set(ids)) == len(ids):
        backwards = prompt(called(*ids), *[result(i) for i in reversed(ids)])
        assert re.findall(r"Return of (.*)\n", backwards) == shown[::-1]


def test_results_without_a_call_keep_their_ids_and_nobody_gets_them(say: Serve) -> None:
    server = say("Fine.")
    messages = [USER, result("functions.weather:0"), result("call_1"), called("call_1")]
    messages += [result("call_1"), result("call_1") | {"tool_calls": []}, USER, called("call_1")]
    text = asked(server, CHAT, messages=messages)
    own = "functions.weather"
    assert re.findall(r"Return of (.*)\n", text) == [f"{own}:0", "call_1", f"{own}:1", f"{own}:1"]
    assert re.findall(r"call_begin\|>(.*?)<\|tool_call_arg", text) == [f"{own}:1", f"{own}:2"]


UNNAMED: dict[str, tuple[str, str | None]] = {
    "one call": ("[a] -", "0"),
    "in order": ("[ab] - -", "01"),
    "one is named": ("[ab] b -", "10"),
    "the other one is named": ("[ab] - b", "01"),
    "behind the user": ("[ab] a u -", "01"),
    "both behind the user": ("[ab] u - -", "01"),
    "in a later turn": ("[a] - [b] -", "01"),
    "one for two calls": ("[ab] -", None),
    "two for one call": ("[a] - -", None),
    "more than the calls left": ("[ab] a - -", None),
    "no call": ("-", None),
    "behind a call that was answered": ("[a] a -", None),
}
"""Calls in brackets, results by the id of their call or without one (-), and the INDEX each gets;
None where it can't be known."""


@pytest.mark.parametrize("case", UNNAMED)
def test_results_without_an_id_get_the_id_of_the_call_they_can_only_belong_to(
    say: Serve, case: str
) -> None:
    server, (told, indices) = say("Fine."), UNNAMED[case]
    for unnamed in ({"role": "tool", "content": "7"}, result(None, "7"), result("", "7")):
        messages = [USER]
        for part in told.split():
            turn = part.strip("[]")
            told_so = called(*turn) if turn != part else USER if part == "u" else result(part)
            messages.append(unnamed if part == "-" else told_so)
        if indices is None:
            error = server.refusal(CHAT, {"messages": messages})
            assert "tool_call_id" in error["message"] and error["param"] == "messages"
        else:
            asked(server, CHAT, messages=messages)
            found = re.findall(r"Return of functions.weather:(\d)\n", shown(server))
            assert "".join(found) == indices


def test_ids_are_known_through_every_protocol_and_clients_get_back_their_own(say: Serve) -> None:
    server = say("Fine.")
    items = [ITEMS[letter] for letter in "uabAB"]
    chat = [USER, {**called("x"), "tool_calls": [chat_call("x"), chat_call("y", ROME)]}]
    chat += [result("x"), result("y", "20 degrees")]
    expected = asked(server, CHAT, messages=chat)
    assert "functions.weather:0" in expected and "## Return of functions.weather:1" in expected
    first = server.ask(RESPONSES, input=items)
    assert prompt_of(server) == expected
    listed = server.http.get(f"/v1/responses/{first['id']}/input_items?order=asc").json()["data"]
    assert [i["call_id"] for i in listed if "call_id" in i] == ["call_a", "call_b"] * 2
    more = {"input": "And?", "previous_response_id": first["id"]}
    assert "## Return of functions.weather:1" in asked(server, RESPONSES, **more)
    uses = [
        {"type": "tool_use", "id": i, "name": "weather", "input": json.loads(arguments)}
        for i, arguments in (("toolu_1", OSLO), ("toolu_2", ROME))
    ]
    told = [
        {"type": "tool_result", "tool_use_id": i, "content": content}
        for i, content in (("toolu_1", "7 degrees"), ("toolu_2", "20 degrees"))
    ]
    turns = [USER, {"role": "assistant", "content": uses}, {"role": "user", "content": told}]
    assert asked(server, MESSAGES, messages=turns) == expected


def test_ids_of_a_history_depend_on_the_template_and_not_on_what_is_read(say: Serve) -> None:
    messages = [USER, called("call_1"), result("call_1")]
    servers = [
        say("Fine.", reading=choose_reading(kimi(), tool_call_parser=parser))
        for parser in ("auto", "none")
    ]
    prompts = [asked(server, CHAT, messages=messages) for server in servers]
    assert prompts[0] == prompts[1] and "functions.weather:0" in prompts[0]
    server = say("Fine.", chat_format="minimax_m2")
    assert "functions." not in asked(server, CHAT, messages=messages), "it shows no ids"


def nested(depth: int) -> str:
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


def test_arguments_that_are_no_object_end_no_conversation(say: Serve) -> None:
    """On a template that reads objects, in every protocol and behind a stored response."""
    server = say("Fine.", chat_format="minimax_m2", model=MODEL)
    for arguments, read in ARGUMENTS:
        call = {**called(), "tool_calls": [chat_call("x", arguments)]}
        prompt = asked(server, CHAT, messages=[USER, call, result("x", "7")])
        for key, value in read.items():
            assert f'<parameter name="{key}">{value}</parameter>' in prompt
        assert prompt.count("<parameter") == len(read)
        items = [USER, ITEMS["a"] | {"arguments": arguments}, ITEMS["A"] | {"output": "7"}]
        assert asked(server, RESPONSES, input=items) == prompt
        first = server.ask(RESPONSES, input=items[:2])
        more = {"input": items[2:], "previous_response_id": first["id"]}
        assert '<parameter name="' in asked(server, RESPONSES, **more) or not read
        use = {"type": "tool_use", "id": "x", "name": "weather", "input": read}
        told = {"type": "tool_result", "tool_use_id": "x", "content": "7"}
        turns = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [told]}]
        assert asked(server, MESSAGES, messages=[USER, *turns]) == prompt


@pytest.mark.parametrize("chat_format", ["kimi_k2", "minimax_m2"])
def test_objects_as_deep_as_a_body_may_be_end_no_conversation(say: Serve, chat_format: str) -> None:
    """Each protocol shows an object that is too deep for templates as text, in the same prompt."""
    server = say("Fine.", chat_format=chat_format, model=MODEL)
    for depth in (100, 200, 300, 600, 950):
        call = json.dumps({**called(), "tool_calls": [chat_call("x", "DEEP")]})
        item = json.dumps(ITEMS["a"] | {"arguments": "DEEP"})
        use = {"type": "tool_use", "id": "x", "name": "weather", "input": "DEEP"}
        turn = json.dumps({"role": "assistant", "content": [use]})
        prompts = set[str]()
        for path, field, message in (
            (CHAT, "messages", call),
            (RESPONSES, "input", item),
            (MESSAGES, "messages", turn),
        ):
            history = json.dumps([USER, "TURN", USER]).replace('"TURN"', message)
            limit = "max_output_tokens" if field == "input" else "max_tokens"
            body = f'{{"{field}": {history}, "{limit}": 9}}'.replace('"DEEP"', nested(depth))
            header = {"Content-Type": "application/json"}
            answer = server.http.post(path, content=body, headers=header)
            assert answer.status_code == 200, (path, depth, answer.text)
            prompts.add(shown(server))
        assert len(prompts) == 1 and nested(depth - 1) in prompts.pop()


def test_a_call_that_the_limit_cut_goes_back_as_it_came(say: Serve) -> None:
    """At every length at which it may be cut, whole and behind a stored response."""
    server = say(ANSWERS["minimax_m2"], chat_format="minimax_m2", model=MODEL)
    lengths = set()
    for limit in range(20, 100, 3):
        body = {"messages": [USER], "tools": CHAT_TOOLS, "max_tokens": limit}
        said = server.ask(CHAT, **body)["choices"][0]["message"]
        calls = said.get("tool_calls") or []
        lengths.add(tuple(len(call["function"]["arguments"]) for call in calls))
        told = [result(call["id"]) for call in calls]
        asked(server, CHAT, **body | {"messages": [USER, said, *told, USER]})
        ask = {"input": [USER], "tools": RESPONSE_TOOLS, "max_output_tokens": limit}
        first = server.ask(RESPONSES, **ask)
        asked(server, RESPONSES, **ask | {"previous_response_id": first["id"]})
    assert len(lengths) > 5


def test_arguments_encoded_twice_are_held_to_the_limit_of_a_body(say: Serve) -> None:
    server = say("Fine.", chat_format="minimax_m2")
    many = json.dumps(json.dumps({str(n): 0 for n in range(2**17 + 1)}))
    call = {**called(), "tool_calls": [chat_call("x", many)]}
    assert server.refusal(CHAT, {"messages": [USER, call]})["code"] == "too_many_values"


FIRST_ALONE = """\
{%- set said = messages[1:] if messages[0].role == 'system' else messages -%}
{%- if messages[0].role == 'system' -%}S:{{ messages[0].content }};{%- endif -%}
{%- for m in said -%}
{%- if m.role == 'user' -%}U:{{ m.content }};{%- elif m.role == 'assistant' -%}A:{{ m.content }};
{%- endif -%}
{%- endfor -%}
"""


@pytest.fixture
def reading_one(serve: Serve) -> Served:
    """A server whose template reads only the system's first message, as MiniMax-M2.5's does."""
    return serve(saying("Hi."), tokenizer=with_template(kimi(), FIRST_ALONE))


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_what_system_and_developer_say_first_is_one_message(reading_one: Served) -> None:
    for roles in (("system", "developer"), ("developer", "system")):
        messages = [said(roles[0], "Be brief."), said(roles[1], "Be kind."), USER]
        reading_one.ask(CHAT, messages=messages)
        assert prompt_of(reading_one) == "S:Be brief.\n\nBe kind.;U:Weather?;"


def test_a_developers_message_is_the_systems(say: Serve) -> None:
    server, prompts = say("Hi."), []
    for role in ("system", "developer"):
        server.ask(CHAT, messages=[said(role, "Be brief."), USER, said(role, "Be kind."), USER])
        prompts.append(prompt_of(server))
    assert prompts[0] == prompts[1] and "Be kind." in prompts[0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [USER, said("system", "Be kind."), USER]}),
        (CHAT, {"messages": [USER, said("developer", "Be kind."), USER]}),
        (CHAT, {"messages": [said("critic", "Be kind."), USER]}),
        ("/tokenize", {"messages": [USER, said("system", "Be kind."), USER]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [USER, said("system", "Be kind."), USER]}),
        ("/v1/messages/count_tokens", {"messages": [USER, said("system", "Be kind."), USER]}),
        ("/v1/responses", {"input": [USER, said("developer", "Be kind."), USER]}),
    ],
)
def test_what_the_template_would_leave_out_is_refused(
    reading_one: Served, path: str, body: dict[str, Any]
) -> None:
    answer = reading_one.http.post(path, json=body)
    assert answer.status_code == 400
    assert "the chat template shows no message of the role" in answer.text
