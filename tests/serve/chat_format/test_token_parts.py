"""The part of an answer that a token belongs to is the one that the parser puts its text into."""

import itertools
from typing import Any

import pytest
from chat_tokenizers import kimi, minimax

from convert.text.tokenizer import Tokenizer
from serve.chat_format.format import choose_reading
from serve.chat_format.parser import AnswerParser, TokenParts

CALLS = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)
TEXTS = {
    "all three": f"I think.</think>It is so.{CALLS}",
    "opened by the answer": "<think>I think.</think>It is so.",
    "opened twice": "<think>I think.",
    "calls end reasoning": f"I think.{CALLS}",
    "marks out of place": "So</think>it<think>is.",
    "nothing": "",
}


def told(tokenizer: Tokenizer, ids: list[int], inside: bool, calls: bool) -> list[str]:
    options = {"inside_reasoning": inside, "reads_calls": calls}
    parts = TokenParts(choose_reading(tokenizer), **options)
    return [*parts.take(ids[:3]), *parts.take(ids[3:])]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_tokens_of_reasoning_and_content_spell_them(text: str) -> None:
    tokenizer = kimi()
    ids = tokenizer.encode(text, add_special=True)
    for inside, calls in itertools.product((True, False), repeat=2):
        options: Any = {"inside_reasoning": inside, "schemas": {"f": {}} if calls else None}
        parser = AnswerParser(tokenizer, choose_reading(tokenizer), **options)
        read = parser.take(ids, tokenizer.decode(ids), final=True)
        parts = told(tokenizer, ids, inside, calls)
        for part, expected in (("reasoning", read.reasoning), ("content", read.content)):
            spelt = [i for i, found in zip(ids, parts, strict=True) if found == part]
            assert tokenizer.decode(spelt, skip_special=False) == expected


def test_a_minimax_answer_has_its_parts_too() -> None:
    text = "I think.</think>It is so.<minimax:tool_call></minimax:tool_call>"
    ids = minimax().encode(text, add_special=True)
    parts = told(minimax(), ids, inside=True, calls=True)
    spelt = [i for i, found in zip(ids, parts, strict=True) if found == "reasoning"]
    assert minimax().decode(spelt) == "I think." and parts[-1] == "calls"
