"""What an answer may be that must call a tool, or may call one and have a form of its own."""

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from chat_tokenizers import kimi, minimax
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serve.chat_format.format import KIMI_K2, MINIMAX_M2, ChatFormat, choose_reading
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
CASES = {"kimi": (kimi, KIMI_K2, KIMI_CALL), "minimax": (minimax, MINIMAX_M2, MINIMAX_CALL)}
KEYS = st.sampled_from(
    ["properties", "required", "type", "enum", "anyOf", "$ref", "$defs", "const", "city", "a"]
)
FORMS = {
    "object": ({"response_format": {"type": "json_object"}}, '{"a": 1}'),
    "schema": ({"guided_json": {"type": "integer"}}, "12"),
    "choice": ({"guided_choice": ["yes", 'n"o']}, 'n"o'),
}


def allows(tokenizer: Any, chat_format: ChatFormat, asked: dict[str, Any], text: str) -> bool:
    """Whether the text, special strings in it being special, is an answer to the request."""
    from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceGrammars

    messages = [{"role": "user", "content": "x"}]
    body = ChatCompletionRequest.model_validate({"messages": messages, "tools": TOOLS, **asked})
    form = answer_form(body, chat_format)
    assert form is not None
    grammars = LLGuidanceGrammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher = grammars.compile(form).start()
    for token in [*tokenizer.encode(text, add_special=True), tokenizer.eos_token_ids[-1]]:
        mask = np.zeros((1, (tokenizer.vocab_size + 31) // 32), "uint32")
        matcher.fill(mask, [])
        if not mask[0, token // 32] >> (token % 32) & 1:
            return False
        matcher.commit(token)
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_required_call_is_in_the_models_own_form_and_follows_its_schema(name: str) -> None:
    make, chat_format, call = CASES[name]
    required = {"tool_choice": "required"}
    assert allows(make(), chat_format, required, call)
    assert not allows(make(), chat_format, required, "text")
    assert not allows(make(), chat_format, required, call.replace("true", "1"))
    assert not allows(make(), chat_format, required, call.replace("weather", "climate"))


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
    make, chat_format, call = CASES[name]
    tokenizer, tool = make(), {"name": "weather", "parameters": parameters}
    asked = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    with suppress(ValueError):
        allows(tokenizer, chat_format, asked, "")
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
    make, chat_format, call = CASES[name]
    asked, content = FORMS[form]
    assert allows(make(), chat_format, asked, call)
    assert allows(make(), chat_format, asked, content)
    assert not allows(make(), chat_format, asked, f"{content}x")
