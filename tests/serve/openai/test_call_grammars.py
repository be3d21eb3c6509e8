"""What an answer may be that must call a tool, or may call one and have a form of its own."""

import json
from contextlib import suppress
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
CASES = {"kimi": (kimi, KIMI_CALL), "minimax": (minimax, MINIMAX_CALL)}
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
    tokenizer: Any, asked: dict[str, Any], *, strict_tools: bool = False
) -> StructuredOutputs | None:
    messages = [{"role": "user", "content": "x"}]
    body = ChatCompletionRequest.model_validate({"messages": messages, "tools": TOOLS, **asked})
    return answer_form(body, choose_reading(tokenizer), strict_tools=strict_tools)


def allows(tokenizer: Any, asked: dict[str, Any], text: str, *, strict_tools: bool = False) -> bool:
    """Whether the text, special strings in it being special, is an answer to the request."""
    from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceGrammars

    form = form_of(tokenizer, asked, strict_tools=strict_tools)
    assert form is not None
    grammars = LLGuidanceGrammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher = grammars.compile(form).start()
    for token in [*tokenizer.encode(text, add_special=True), tokenizer.eos_token_ids[-1]]:
        mask = open_masks(tokenizer.vocab_size, 1)
        matcher.fill(mask, [])
        if not mask[0, token // 32] >> (token % 32) & 1:
            return False
        matcher.commit(token)
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_required_call_is_in_the_models_own_form_and_follows_its_schema(name: str) -> None:
    make, call = CASES[name]
    required = {"tool_choice": "required"}
    assert allows(make(), required, call)
    assert not allows(make(), required, "text")
    assert not allows(make(), required, call.replace("true", "1"))
    assert not allows(make(), required, call.replace("weather", "climate"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["string", "#/$defs/a", "a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize("name", CASES)
@example(parameters={"properties": {"a": 1}, "required": 5})
@given(parameters=st.dictionaries(KEYS, JSON, max_size=4))
@settings(max_examples=40, deadline=None)
def test_whatever_a_schema_looks_like_it_is_refused_or_used(
    name: str, parameters: dict[str, Any]
) -> None:
    """Never an error of another kind, neither of the grammar nor of reading a call."""
    make, call = CASES[name]
    tokenizer, tool = make(), {"name": "weather", "parameters": parameters}
    asked = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    with suppress(ValueError, ApiError):
        allows(tokenizer, asked, "")
    token_ids = tokenizer.encode(call, add_special=True)
    parser = AnswerParser(
        tokenizer,
        choose_reading(tokenizer),
        inside_reasoning=False,
        schemas={"weather": parameters},
    )
    parts = parser.take(token_ids, tokenizer.decode(token_ids), final=True)
    assert json.loads(parts.calls[0].arguments)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_with_tools_an_answer_is_calls_or_has_the_form(name: str, form: str) -> None:
    make, call = CASES[name]
    asked, content = FORMS[form]
    assert allows(make(), asked, call)
    assert allows(make(), asked, content)
    assert not allows(make(), asked, f"{content}x")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_what_must_be_a_call_has_no_content_to_have_a_form(name: str, form: str) -> None:
    make, call = CASES[name]
    asked, content = FORMS[form]
    required = asked | {"tool_choice": "required"}
    assert form_of(make(), required) == form_of(make(), {"tool_choice": "required"})
    assert allows(make(), required, call) and not allows(make(), required, content)


def test_beside_tools_a_grammar_is_larks() -> None:
    with pytest.raises(ApiError, match="Lark's, with a rule `start`"):
        form_of(kimi(), {"guided_grammar": 'root ::= "a"'})
    for broken in ("start: ((", 'start: "a"\n} x: "b"', "start: nothing"):
        with pytest.raises(ValueError, match="guided_grammar: "):
            allows(kimi(), {"guided_grammar": broken}, "a")


@pytest.mark.parametrize("name", CASES)
def test_a_call_that_the_model_chooses_is_held_where_its_tool_is_strict(name: str) -> None:
    """Text around calls is free, and so is what the other tools are given."""
    make, call = CASES[name]
    strict = {"tools": [TOOLS[0] | {"function": TOOLS[0]["function"] | {"strict": True}}, TOOLS[1]]}
    assert form_of(make(), {}) is None
    assert allows(make(), strict, f"One moment.{call}And again:{call}<b>")
    assert allows(make(), strict, "No.")
    assert not allows(make(), strict, call.replace("true", "1"))
    assert not allows(make(), strict, call.replace("weather", "climate"))
    other = OTHER_CALLS[name]
    assert allows(make(), strict, f"Hm.{other}")
    assert not allows(make(), {}, other, strict_tools=True)
    assert not allows(make(), strict | {"tool_choice": "required"}, other)


OTHER_CALLS = {
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.time:0"
    "<|tool_call_argument_begin|>{broken<|tool_call_end|><|tool_calls_section_end|>",
    "minimax": '<minimax:tool_call>\n<invoke name="time">\nbroken</invoke>\n</minimax:tool_call>',
}


@pytest.mark.parametrize("name", CASES)
def test_only_tools_that_are_allowed_are_called(name: str) -> None:
    make, call = CASES[name]
    named = [{"type": "function", "function": {"name": "time"}}]
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
    auto, other = {"tool_choice": allowed}, OTHER_CALLS[name]
    assert allows(make(), auto, f"Text.{other}") and not allows(make(), auto, call)
    allowed = allowed | {"allowed_tools": {"mode": "required", "tools": named}}
    assert not allows(make(), {"tool_choice": allowed}, "Text.")
    unknown = [{"type": "function", "function": {"name": "climate"}}]
    for choice in (
        {"type": "custom", "custom": {"name": "weather"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": unknown}},
        unknown[0],
    ):
        with pytest.raises(ValidationError, match="tool_choice"):
            form_of(make(), {"tool_choice": choice})


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
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], **defined}
    tool = {"name": "f", "parameters": parameters}
    asked = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}

    def call(value: str | None) -> str:
        given = "" if value is None else f'<parameter name="a">{value}</parameter>\n'
        inside = f'<invoke name="f">\n{given}</invoke>\n'
        return f"<minimax:tool_call>\n{inside}</minimax:tool_call>"

    assert all(allows(minimax(), asked, call(value)) for value in good)
    assert not allows(minimax(), asked, call(None)), "it is required"
    assert not any(allows(minimax(), asked, call(value)) for value in bad)


def test_minimaxs_form_refuses_what_it_can_not_hold() -> None:
    """By name, rather than to let arguments leave their schema."""
    for parameters in ({"anyOf": [{"required": ["a"]}]}, {"minProperties": 1}):
        tool = {"name": "f", "parameters": parameters}
        asked = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
        with pytest.raises(ApiError, match=next(iter(parameters))):
            form_of(minimax(), asked)
    nothing = {"name": "f", "parameters": {"properties": {}, "additionalProperties": False}}
    asked = {"tools": [{"type": "function", "function": nothing}], "tool_choice": "required"}
    call = '<minimax:tool_call>\n<invoke name="f">\n{}</invoke>\n</minimax:tool_call>'
    assert allows(minimax(), asked, call.format(""))
    assert not allows(minimax(), asked, call.format('<parameter name="a">1</parameter>\n'))
