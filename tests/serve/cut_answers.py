"""Answers with calls, sound and not, cut into outputs as an engine may hand them out."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from chat_tokenizers import TOKENIZERS
from hypothesis import strategies as st

from convert.text.tokenizer import Tokenizer
from eagle3_jax.engine.text import TextStream
from eagle3_jax.sampling.params import SamplingParams
from serve.chat_format.format import ChatReading, choose_reading
from serve.chat_format.parser import AnswerParser

SCHEMAS = {
    "f": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {}}},
    "g": {"properties": {"l": {"type": ["array", "null"]}}},
}
Answer = tuple[tuple[int, ...], str]


def parser(
    tokenizer: Tokenizer, reading: ChatReading | None = None, **options: Any
) -> AnswerParser:
    ids = count()
    asked: dict[str, Any] = {"inside_reasoning": True, "schemas": SCHEMAS, **options}
    reading = reading or choose_reading(tokenizer)
    return AnswerParser(tokenizer, reading, new_id=lambda: f"call_{next(ids)}", **asked)


def outputs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    cuts: Iterator[int],
    stop: Sequence[str] = (),
    skip_special: bool = True,
) -> list[Answer]:
    """The tokens as the engine hands them out, so many at a time, until a stop string."""
    sampling = SamplingParams(stop=stop, skip_special_tokens=skip_special)
    stream, answers = TextStream(tokenizer, sampling), []
    rest = list(token_ids)
    while rest:
        size = next(cuts)
        batch, rest = rest[:size], rest[size:]
        stopped = any(stream.push(token) is not None for token in batch)
        answers.append(stream.release(final=stopped or not rest))
        if stopped:
            break
    return answers


WELL_FORMED = {
    "kimi_k2": (
        "hm <|im_end|>¦</think>¦ok¦<|tool_calls_section_begin|>¦"
        '<|tool_call_begin|>¦functions.f:0¦<|tool_call_argument_begin|>¦{"s": "é🙂"¦}¦'
        "<|tool_call_end|>¦<|tool_call_begin|>¦g¦<|tool_call_argument_begin|>¦{}¦"
        "<|tool_call_end|>¦<|tool_calls_section_end|>¦bye"
    ),
    "minimax_m2": (
        'hm\n¦</think>¦\n\nok\n¦<minimax:tool_call>¦\n<invoke name="f">¦<parameter name="s">¦'
        'a"</p🙂¦</parameter>¦<parameter name="n">¦12¦</parameter>¦<parameter name="o">¦x¦</para¦'
        'meter>¦</invoke>¦\n<invoke name="g">¦<parameter name="l">¦[1, null]¦</parameter>¦'
        "</invoke>¦</minimax:tool_call>¦bye"
    ),
}
"""Answers with calls, in the parts that a test may drop or replace."""


@st.composite
def token_streams(draw: st.DrawFn, name: str) -> list[int]:
    """An answer with calls, in which parts were dropped, or replaced by any tokens."""
    tokenizer = TOKENIZERS[name]()
    marks = [mark.text for mark in choose_reading(tokenizer).marks.values()]
    other = st.one_of(
        st.sampled_from(marks).map(lambda mark: tokenizer.encode(mark, add_special=True)),
        st.sampled_from(marks).map(tokenizer.encode),
        st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=3),
    )
    token_ids: list[int] = []
    for text in WELL_FORMED[name].split("¦"):
        fate = draw(st.integers(0, 9))
        own = tokenizer.encode(text, add_special=text in marks)
        token_ids += own if fate > 1 else draw(other) if fate else []
    return token_ids
