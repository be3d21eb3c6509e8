"""Which part of an answer a token belongs to is what the answer's reader makes of its text."""

import pytest
from chat_tokenizers import kimi, minimax, reading_of

from serve.chat_format.parser import AnswerParser
from serve.chat_format.token_parts import TokenParts

CALLS = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
    "<|tool_call_end|><|tool_calls_section_end|>"
)
KIMI = {
    "all three": f"I think.</think>It is so.{CALLS}",
    "opened by the answer": "<think>I think.</think>It is so.",
    "opened twice": "<think>I think.",
    "calls end reasoning": f"I think.{CALLS}",
    "marks out of place": "So</think>it<think>is.",
    "nothing": "",
}
MINIMAX = "I think.</think>It is so.<minimax:tool_call></minimax:tool_call>"


@pytest.mark.parametrize("reads_calls", [True, False])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("text", KIMI.values(), ids=KIMI)
def test_tokens_of_reasoning_and_content_spell_them(
    text: str, inside: bool, reads_calls: bool
) -> None:
    tokenizer = kimi()
    ids = tokenizer.encode(text, add_special=True)
    options = {"inside_reasoning": inside, "schemas": {"f": {}} if reads_calls else None}
    parser = AnswerParser(tokenizer, reading_of(tokenizer), **options)
    read = parser.take(ids, tokenizer.decode(ids), final=True)
    parts = TokenParts(reading_of(tokenizer), inside_reasoning=inside, reads_calls=reads_calls)
    told = parts.take(ids[:3]) + parts.take(ids[3:])
    for part, expected in (("reasoning", read.reasoning), ("content", read.content)):
        spelt = [i for i, found in zip(ids, told, strict=True) if found == part]
        assert tokenizer.decode(spelt, skip_special=False) == expected


def test_a_minimax_answer_has_its_parts_too() -> None:
    tokenizer = minimax()
    ids = tokenizer.encode(MINIMAX, add_special=True)
    parts = TokenParts(reading_of(tokenizer), inside_reasoning=True, reads_calls=True)
    told = parts.take(ids)
    spelt = [i for i, found in zip(ids, told, strict=True) if found == "reasoning"]
    assert tokenizer.decode(spelt) == "I think."
    assert told[-1] == "calls"
