"""Answers are marked where the served model would write them, whatever the chat format."""

from typing import Any

import pytest
from chat_tokenizers import kimi, minimax

from convert.text.tokenizer import Tokenizer
from serve.train.answers import SampleMaker

QUESTION = {"role": "user", "content": "Q"}
PLAIN = {"role": "assistant", "content": "A"}
REASONED = {"role": "assistant", "content": "A", "reasoning_content": "R"}
CALL = {"id": "functions.f:0", "function": {"name": "f", "arguments": '{"x": 1}'}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "f", "tool_call_id": "functions.f:0", "content": "T"}


def wanted(tokenizer: Tokenizer, messages: list[Any], thinking: str = "auto") -> list[str]:
    """The text that each sample wants, and a bar where it does not want what lies between."""
    texts = []
    for sample in SampleMaker(tokenizer, tokenizer.eos_token_ids, thinking)(messages):
        pieces, open_piece = [], False
        for token, is_wanted in zip(sample.token_ids, sample.wanted, strict=True):
            if is_wanted and not open_piece:
                pieces.append("")
            if is_wanted:
                pieces[-1] += tokenizer.decode([token], skip_special=False)
            open_piece = is_wanted
        texts.append("|".join(pieces))
    return texts


CALLED = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
CALLED += '{"x": 1}<|tool_call_end|><|tool_calls_section_end|><|im_end|>'
CASES = {
    "kimi, two answers in one sample": (
        *(kimi, [QUESTION, PLAIN, QUESTION, PLAIN], "auto"),
        ["A<|im_end|>|A<|im_end|>"],
    ),
    "kimi, reasoning that later prompts lack": (
        *(kimi, [QUESTION, REASONED, QUESTION, REASONED], "auto"),
        ["R</think>A<|im_end|>", "R</think>A<|im_end|>"],
    ),
    "kimi, text in parts": (
        *(kimi, [{"role": "user", "content": [{"type": "text", "text": "Q"}]}, PLAIN], "auto"),
        ["A<|im_end|>"],
    ),
    "kimi, thinking off": (kimi, [QUESTION, REASONED], "off", ["A<|im_end|>"]),
    "kimi, thinking on": (kimi, [QUESTION, PLAIN], "on", ["</think>A<|im_end|>"]),
    "kimi, a call and what follows it": (
        *(kimi, [QUESTION, CALLING, RESULT, PLAIN], "auto"),
        [f"{CALLED}|A<|im_end|>"],
    ),
    "minimax": (
        *(minimax, [QUESTION, REASONED, QUESTION, REASONED], "auto"),
        ["R\n</think>\n\nA[e~[|R\n</think>\n\nA[e~["],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wanted_is_what_the_model_says(case: str) -> None:
    tokenizer, messages, thinking, texts = CASES[case]
    assert wanted(tokenizer(), messages, thinking) == texts


@pytest.mark.parametrize("tokenizer", [kimi, minimax])
def test_a_sample_begins_with_the_prompt_that_a_server_would_make(tokenizer: Any) -> None:
    read = tokenizer()
    (sample,) = SampleMaker(read, read.eos_token_ids)([QUESTION, REASONED])
    prompt = read.encode_chat([QUESTION], thinking=True)
    assert sample.token_ids[: len(prompt)] == prompt
    assert not any(sample.wanted[: len(prompt)]) and sample.wanted[len(prompt)]


TEXT = {"type": "text", "text": "Q"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}


@pytest.mark.parametrize(
    ("tokenizer", "messages", "thinking", "said"),
    [
        (minimax, [QUESTION, PLAIN], "off", "no switch that turns its thinking off"),
        (kimi, [QUESTION], "auto", "no message is of the role assistant"),
        (kimi, [{"role": "user", "content": [IMAGE, TEXT]}, PLAIN], "auto", "takes no images"),
        (
            kimi,
            [{"role": "user", "content": [{"type": "input_audio"}]}, PLAIN],
            "auto",
            "is not implemented",
        ),
    ],
)
def test_a_conversation_that_cannot_be_taught_is_refused(
    tokenizer: Any, messages: list[Any], thinking: str, said: str
) -> None:
    """An image is not taught as a placeholder."""
    with pytest.raises(ValueError, match=said):
        wanted(tokenizer(), messages, thinking)
