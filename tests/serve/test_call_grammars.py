"""What an answer may be that must call a tool, or may call one beside a form of its own."""

from typing import Any

import numpy as np
import pytest
from dialect_tokenizers import kimi, minimax

from serve.answer_form import answer_form
from serve.dialects import KIMI_K2, MINIMAX_M2, Dialect
from serve.protocol import ChatCompletionRequest

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
FORMS = {
    "object": ({"response_format": {"type": "json_object"}}, '{"a": 1}'),
    "schema": ({"guided_json": {"type": "integer"}}, "12"),
    "choice": ({"guided_choice": ["yes", 'n"o']}, 'n"o'),
}


def allows(tokenizer: Any, dialect: Dialect, given: dict[str, Any], text: str) -> bool:
    """Whether the text, special strings in it being special, is an answer to the request."""
    from eagle3_jax.engine.llguidance_grammars import LLGuidanceGrammars

    messages = [{"role": "user", "content": "x"}]
    body = ChatCompletionRequest.model_validate({"messages": messages, "tools": TOOLS, **given})
    form = answer_form(body, dialect)
    assert form is not None
    grammars = LLGuidanceGrammars(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher = grammars.start(form)
    for token in [*tokenizer.encode(text, add_special=True), tokenizer.eos_token_ids[-1]]:
        mask = np.zeros((1, (tokenizer.vocab_size + 31) // 32), "uint32")
        matcher.fill(mask, [])
        if not mask[0, token // 32] >> (token % 32) & 1:
            return False
        matcher.commit(token)
    return True


@pytest.mark.parametrize("name", CASES)
def test_a_required_call_is_in_the_models_own_form_and_follows_its_schema(name: str) -> None:
    make, dialect, call = CASES[name]
    required = {"tool_choice": "required"}
    assert allows(make(), dialect, required, call)
    assert not allows(make(), dialect, required, "text")
    assert not allows(make(), dialect, required, call.replace("true", "1"))
    assert not allows(make(), dialect, required, call.replace("weather", "climate"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_beside_tools_an_answer_is_calls_or_has_the_form(name: str, form: str) -> None:
    make, dialect, call = CASES[name]
    given, content = FORMS[form]
    assert allows(make(), dialect, given, call)
    assert allows(make(), dialect, given, content)
    assert not allows(make(), dialect, given, f"{content}x")
