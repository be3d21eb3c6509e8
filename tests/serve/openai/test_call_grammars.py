"""Grammars of answers that must call a tool, or may call one and have a form of their own."""

import json
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from chat_tokenizers import kimi, minimax
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.token_mask import open_masks
from serve.asgi.errors import ApiError
from serve.chat_format.format import choose_reading
from serve.chat_format.parser import AnswerParser
from serve.openai.answer_form import answer_form
from serve.openai.protocol import ChatCompletionRequest

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["c", "f"]},
        "more": {"$ref": "#/$defs/more"},
    },
    "required": ["city"],
    "$defs": {"more": {"type": "object", "properties": {"a": {"type": "boolean"}}}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "time"}},
]
KIMI_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "a</b", "days": 2, "more": {"a": true}}<|tool_call_end|>'
    "<|tool_calls_section_end|>"
)
MINIMAX_CALL = (
    '\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">a<b </p</parameter>\n'
    '<parameter name="unit">c</parameter>\n<parameter name="more">{"a": true}</parameter>\n'
    '</invoke>\n<invoke name="time">\n<parameter name="zone">UTC</parameter>\n</invoke>\n'
    "</minimax:tool_call>"
)
TOKENIZERS = {"kimi": kimi(), "minimax": minimax()}
CALLS = {"kimi": KIMI_CALL, "minimax": MINIMAX_CALL}
OTHER_CALLS = {
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.time:0"
    "<|tool_call_argument_begin|>{broken<|tool_call_end|><|tool_calls_section_end|>",
    "minimax": '<minimax:tool_call>\n<invoke name="time">\nbroken</invoke>\n</minimax:tool_call>',
}
REQUIRED: dict[str, Any] = {"tool_choice": "required"}
KEYS = st.sampled_from(
    ["properties", "required", "type", "enum", "anyOf", "$ref", "$defs", "const", "city", "a"]
)
LARK = 'start: calls\ncalls: "(" calls? ")"'
"""Its rules have the names of ours."""
FORMS = {
    "object": ({"response_format": {"type": "json_object"}}, '{"a": 1}'),
    "schema": ({"guided_json": {"type": "integer"}}, "12"),
    "choice": ({"guided_choice": ["yes", 'n"o']}, 'n"o'),
    "regex": ({"guided_regex": "a/b\\/[0-9]{2}\n(?:y|z)"}, "a/b/12\nz"),
    "grammar": ({"guided_grammar": LARK}, "(())"),
}


def form_of(
    name: str, asked: dict[str, Any], *, strict_tools: bool = False
) -> StructuredOutputs | None:
    messages = [{"role": "user", "content": "x"}]
    body = ChatCompletionRequest.model_validate({"messages": messages, "tools": TOOLS, **asked})
    return answer_form(body, choose_reading(TOKENIZERS[name]), strict_tools=strict_tools)


@cache
def grammars(name: str) -> Any:
    from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceGrammars

    tokenizer = TOKENIZERS[name]
    return LLGuidanceGrammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)


def allows(name: str, asked: dict[str, Any], text: str, *, strict_tools: bool = False) -> bool:
    """Return whether the text, with special strings as special tokens, is an allowed answer."""
    form, tokenizer = form_of(name, asked, strict_tools=strict_tools), TOKENIZERS[name]
    assert form is not None
    matcher = grammars(name).compile(form).start()
    for token in [*tokenizer.encode(text, add_special=True), tokenizer.eos_token_ids[-1]]:
        mask = open_masks(tokenizer.vocab_size, 1)
        matcher.fill(mask, [])
        if not mask[0, token // 32] >> (token % 32) & 1:
            return False
        matcher.commit(token)
    return True


def tool_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that must call a tool with such parameters."""
    function = {"name": "f", "parameters": parameters}
    return REQUIRED | {"tools": [{"type": "function", "function": function}]}


@pytest.mark.parametrize("name", CALLS)
def test_a_required_call_is_in_the_models_own_form_and_follows_its_schema(name: str) -> None:
    call = CALLS[name]
    assert allows(name, REQUIRED, call)
    for other in ("text", call.replace("true", "1"), call.replace("weather", "climate")):
        assert not allows(name, REQUIRED, other)
    for form, content in FORMS.values():
        assert form_of(name, form | REQUIRED) == form_of(name, REQUIRED)
        assert not allows(name, form | REQUIRED, content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["string", "#/$defs/a", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("name", CALLS)
@example(parameters={"properties": {"a": 1}, "required": 5})
@given(parameters=st.dictionaries(KEYS, JSON, max_size=4))
@settings(max_examples=40, deadline=None)
def test_whatever_a_schema_looks_like_it_is_refused_or_used(
    name: str, parameters: dict[str, Any]
) -> None:
    """Never an error of another kind, neither of the grammar nor of reading a call."""
    tokenizer, call = TOKENIZERS[name], CALLS[name].replace("weather", "f")
    with suppress(ValueError, ApiError):
        allows(name, tool_of(parameters), "")
    token_ids = tokenizer.encode(call, add_special=True)
    options: Any = {"inside_reasoning": False, "schemas": {"f": parameters}}
    parser = AnswerParser(tokenizer, choose_reading(tokenizer), **options)
    parts = parser.take(token_ids, tokenizer.decode(token_ids), final=True)
    assert json.loads(parts.calls[0].arguments)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("form", FORMS)
def test_with_tools_an_answer_is_calls_or_has_the_form(name: str, form: str) -> None:
    asked, content = FORMS[form]
    assert allows(name, asked, CALLS[name])
    assert allows(name, asked, content)
    assert not allows(name, asked, f"{content}x")


def test_beside_tools_a_grammar_is_larks() -> None:
    with pytest.raises(ApiError, match="must be in Lark syntax and have a rule `start`"):
        form_of("kimi", {"guided_grammar": 'root ::= "a"'})
    for broken in ("start: ((", 'start: "a"\n} x: "b"', "start: nothing"):
        with pytest.raises(ValueError, match="guided_grammar: "):
            allows("kimi", {"guided_grammar": broken}, "a")


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_the_model_chooses_is_held_where_its_tool_is_strict(name: str) -> None:
    """Text around calls is free, and so is what the other tools are given."""
    call, other = CALLS[name], OTHER_CALLS[name]
    strict = {"tools": [TOOLS[0] | {"function": TOOLS[0]["function"] | {"strict": True}}, TOOLS[1]]}
    assert form_of(name, {}) is None
    for text in (f"One moment.{call}And again:{call}<b>", "No.", f"Hm.{other}"):
        assert allows(name, strict, text)
    assert not allows(name, strict, call.replace("true", "1"))
    assert not allows(name, strict, call.replace("weather", "climate"))
    assert not allows(name, {}, other, strict_tools=True)
    assert not allows(name, strict | REQUIRED, other)


@pytest.mark.parametrize("name", CALLS)
def test_only_tools_that_are_allowed_are_called(name: str) -> None:
    def choosing(mode: str, tool: str) -> dict[str, Any]:
        named = [{"type": "function", "function": {"name": tool}}]
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
        return {"tool_choice": allowed}

    assert allows(name, choosing("auto", "time"), f"Text.{OTHER_CALLS[name]}")
    assert not allows(name, choosing("auto", "time"), CALLS[name])
    assert not allows(name, choosing("required", "time"), "Text.")
    custom = {"tool_choice": {"type": "custom", "custom": {"name": "weather"}}}
    unknown = {"tool_choice": {"type": "function", "function": {"name": "climate"}}}
    for choice in (custom, unknown, choosing("auto", "climate")):
        with pytest.raises(ValidationError, match="tool_choice"):
            form_of(name, choice)


STRINGS = {
    "mixed": ({"enum": ["a", 1, None, True]}, ["a", "1", "null", "true"], ["b", "2", ""]),
    "empty": ({"enum": ["", "a"]}, ["", "a"], ["b"]),
    "const": ({"const": "a"}, ["a"], ["b", ""]),
    "length": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "a\n<"], ["a", "abcd"]),
    "pattern": ({"type": "string", "pattern": "^[0-9]{2}/x$"}, ["12/x"], ["12", "123/x", "a12/x"]),
    "slashes": ({"type": "string", "pattern": "^a\\/b/c$"}, ["a/b/c"], ["a/b/", "a"]),
    "reference": ({"$ref": "#/$defs/letter"}, ["a", "b"], ["c", ""]),
    "union": ({"type": ["integer", "null"]}, ["1", "null"], ["a", "1.5", ""]),
    "any of": ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, ["1", "true"], ["a", "null"]),
    "or a text": ({"type": ["string", "integer"]}, ["a", "1"], []),
    "somewhere": ({"type": "string", "pattern": "[0-9]{2}"}, ["a12b", "12"], ["1", "a1b2"]),
}


@pytest.mark.parametrize("kind", STRINGS)
def test_minimaxs_texts_follow_the_schema_of_a_string(kind: str) -> None:
    schema, good, bad = STRINGS[kind]
    defined = {"$defs": {"letter": {"enum": ["a", "b"]}}}
    asked = tool_of({"type": "object", "properties": {"a": schema}, "required": ["a"], **defined})

    def allowed(inside: str) -> bool:
        call = f'<minimax:tool_call>\n<invoke name="f">\n{inside}</invoke>\n</minimax:tool_call>'
        return allows("minimax", asked, call)

    parameter = '<parameter name="a">{}</parameter>\n'
    assert all(allowed(parameter.format(value)) for value in good)
    assert not allowed(""), "it is required"
    assert not any(allowed(parameter.format(value)) for value in bad)


def test_minimaxs_form_refuses_what_it_can_not_hold() -> None:
    """By name, rather than to let arguments leave their schema."""
    for parameters in ({"anyOf": [{"required": ["a"]}]}, {"minProperties": 1}):
        with pytest.raises(ApiError, match=next(iter(parameters))):
            form_of("minimax", tool_of(parameters))
    asked = tool_of({"properties": {}, "additionalProperties": False})
    call = '<minimax:tool_call>\n<invoke name="f">\n{}</invoke>\n</minimax:tool_call>'
    assert allows("minimax", asked, call.format(""))
    assert not allows("minimax", asked, call.format('<parameter name="a">1</parameter>\n'))
