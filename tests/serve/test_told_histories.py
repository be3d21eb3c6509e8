"""Conversations that clients tell in their own order, with ids and nulls of their own, give the
prompt that the model would have had from its own server."""

import json
import re
from itertools import groupby
from typing import Any

import pytest
from called_tools import prompt_of
from chat_tokenizers import kimi
from scripted_engine import ScriptedEngine
from told import ITEMS, OSLO, ROME, USER, Say, asked, called, chat_call, result, shown

from serve.chat_format.format import choose_reading

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
    if all(ids) and len(set(ids)) == len(ids):
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
    say: Say, case: str
) -> None:
    server, (told, indices) = say("Fine."), UNNAMED[case]
    for unnamed in ({"role": "tool", "content": "7"}, result(None, "7"), result("", "7")):
        messages = [USER]
        for part in told.split():
            turn = part.strip("[]")
            told_so = called(*turn) if turn != part else USER if part == "u" else result(part)
            messages.append(unnamed if part == "-" else told_so)
        answer = server.http.post("/v1/chat/completions", json={"messages": messages})
        if indices is None:
            error = answer.json()["error"]
            assert answer.status_code == 400 and "tool_call_id" in error["message"]
            assert error["param"] == "messages"
        else:
            found = re.findall(r"Return of functions.weather:(\d)\n", shown(server))
            assert "".join(found) == indices


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
