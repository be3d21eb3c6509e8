"""A schema that can't be enforced is refused by the name that the client gave it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from called_tools import saying
from chat_tokenizers import TOKENIZERS
from fake_server import Served, served_by

from eagle3_jax.engine.engine import load_grammars
from serve.engine import grammar_trials
from serve.openai.service import ModelInfo

pytest.importorskip("llguidance")
from serve.engine.grammar_trials import GrammarTrials

GOOD = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOKS_AHEAD = {"type": "string", "pattern": "^(?!-)[a-z]+$"}
DIFFERENT = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PROTOCOLS = {CHAT: "response_format", RESPONSES: "text.format", MESSAGES: "output_config.format"}
"""And the field that asks for a form."""


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


BAD = {
    "#/properties/slug/pattern": object_of(city={"type": "string"}, slug=LOOKS_AHEAD),
    "#/properties/a~1b/items/uniqueItems": object_of(
        **{"a/b": {"type": "array", "items": DIFFERENT}}
    ),
    "#/$defs/slug/pattern": {
        **object_of(one={"$ref": "#/$defs/slug"}, other={"$ref": "#/$defs/slug"}),
        "$defs": {"slug": LOOKS_AHEAD},
    },
    "#/properties/a/anyOf/1/not": object_of(a={"anyOf": [{"type": "null"}, {"not": {"const": 1}}]}),
    "#/properties/a/type": object_of(a={"type": "any"}),
    "#/properties/a/oneOf": object_of(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    "#/properties/a/maxItems": object_of(a={"type": "array", "maxItems": "5"}),
    "#/properties/a/items/$ref": object_of(a={"type": "array", "items": {"$ref": "#/$defs/none"}}),
}
"""Schemas, by the keyword that can't be enforced."""
SLOW = {"type": "integer", "multipleOf": 1234567, "minimum": -(10**15), "maximum": 10**15}


@pytest.fixture(scope="module", params=TOKENIZERS)
def server(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server that compiles forms, and whose engine takes no notice of them."""
    tokenizer = TOKENIZERS[request.param]()
    grammars = load_grammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    assert grammars is not None
    owner = ExitStack()
    grammars.try_by(GrammarTrials(grammars.prepare(), owner))
    engine = saying("x", chat_format=request.param)
    engine.max_model_len = 1_000_000
    model = ModelInfo(("fake",), "/models/fake", engine.max_model_len)
    with owner, served_by(engine, tokenizer, grammars=grammars, model=model) as running:
        yield running


def form(protocol: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The field of a body that asks for an answer of this schema."""
    if protocol == CHAT:
        wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        return {"response_format": wrapped}
    given = {"type": "json_schema", "schema": schema}
    if protocol == MESSAGES:
        return {"output_config": {"format": given}}
    return {"text": {"format": given | {"name": "a"}}}


def ask(
    server: Served, protocol: str, tools: dict[str, Any], /, must: bool = True, **more: Any
) -> Any:
    """Offers these tools, of which one must be called, and gives more fields."""
    named, hi = tools.items(), [{"role": "user", "content": "hi"}]
    choice: Any = "required" if must else "auto"
    if protocol == CHAT:
        listed = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in named]
        body: dict[str, Any] = {"messages": hi, "max_tokens": 3}
    elif protocol == RESPONSES:
        listed = [{"type": "function", "name": n, "parameters": s} for n, s in named]
        body = {"input": "hi", "max_output_tokens": 3}
    else:
        listed = [{"name": n, "input_schema": s} for n, s in named]
        body, choice = {"messages": hi, "max_tokens": 3}, {"type": "any" if must else "auto"}
    offered = {"tools": listed, "tool_choice": choice} if tools else {}
    return server.http.post(protocol, json=body | offered | more)


def refusal(answer: Any) -> dict[str, Any]:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert len(error["message"]) < 600 and "structured_outputs" not in answer.text, error
    assert "tool_call" not in error["message"] and "call_0" not in error["message"], error
    return error


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_bad_tool_of_many_is_named_with_the_keyword(server: Served, protocol: str) -> None:
    for pointer, schema in BAD.items():
        tools = {f"wiki_{n}": GOOD for n in range(20)} | {"rename": schema, "last": GOOD}
        error = refusal(ask(server, protocol, tools))
        assert f"tools: the parameters of 'rename': {pointer} can't be enforced" in error["message"]
        assert error.get("param", "tools") == "tools"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bad_form_is_named_as_the_client_named_it(server: Served, protocol: str) -> None:
    """Alone and beside tools."""
    field, pointer = PROTOCOLS[protocol], "#/properties/slug/pattern"
    for tools in ({}, {"read": GOOD}):
        given = form(protocol, BAD[pointer])
        error = refusal(ask(server, protocol, tools, must=False, **given))
        assert error["message"].startswith(f"{field}: {pointer} can't be enforced: ")
        assert error.get("param", field) == field


def test_a_completion_names_the_field_that_asks_for_the_form(server: Served) -> None:
    for field in ("guided_json", "json_schema"):
        asked = {"prompt": "a", "max_tokens": 2, field: BAD["#/properties/a/type"]}
        error = refusal(server.http.post("/v1/completions", json=asked))
        assert error["message"].startswith(f"{field}: #/properties/a/type can't be enforced: ")
        assert error["param"] == field


def test_tools_that_are_too_complex_are_named_alone_or_together(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "CPU_SECONDS", 0.3)
    tools = {"read": GOOD, "slow": object_of(a=SLOW), "other": GOOD}
    error = refusal(ask(server, CHAT, tools))
    assert error["message"].startswith("tools: the parameters of 'slow': too complex: ")
    monkeypatch.setattr(grammar_trials, "GRAMMAR_BYTES", 1000)
    many = {f"tool_{n}": GOOD for n in range(30)}
    error = refusal(ask(server, CHAT, many))
    assert error["message"].startswith("tools: 30 schemas together: too complex: compiled it holds")
    longest = {**many, "long": object_of(a={"const": "long" * 70_000})}
    error = refusal(ask(server, CHAT, longest))
    assert error["message"].startswith("tools: the schemas of all tools together may have 262144")
    assert "'long'" in error["message"] and error["param"] == "tools"


VACUOUS = object_of(
    city={"type": "string", "format": "city", "minLength": 0, "contentEncoding": "base64"},
    days={"type": "array", "uniqueItems": False, "items": {"type": "integer"}, "minContains": 0},
    uniqueItems={"type": "object", "propertyNames": {"type": "string"}, "dependentRequired": {}},
) | {
    **{"propertyNames": True, "dependentSchemas": {}, "minProperties": 0, "title": "t"},
    **{"not": False, "if": {"required": ["city"]}, "unevaluatedProperties": True, "x-order": 1},
    **{"$schema": "https://example.com/dialect", "$comment": "c", "examples": [{}]},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_keywords_that_bar_nothing_refuse_nothing(server: Served, protocol: str) -> None:
    assert ask(server, protocol, {"read": VACUOUS}).status_code == 200
    answer = ask(server, protocol, {}, **form(protocol, VACUOUS))
    assert answer.status_code == 200, answer.text


def test_a_strict_tool_may_have_keywords_that_bar_nothing(server: Served) -> None:
    function = {"name": "read", "parameters": VACUOUS, "strict": True}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "auto"}
    assert ask(server, CHAT, {}, **tools).status_code == 200
    function["parameters"] = json.loads(json.dumps(VACUOUS).replace("false", "true"))
    assert "#/" in refusal(ask(server, CHAT, {}, **tools))["message"]
