"""Reading chat answers: cuts don't matter, nothing vanishes, calls go back as they came."""

import json
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import pytest
from chat_tokenizers import kimi, minimax
from hypothesis import given, settings
from hypothesis import strategies as st

from convert.text.tokenizer import Tokenizer
from eagle3_jax.engine.text import TextStream
from eagle3_jax.sampling.params import SamplingParams
from serve.chat_format.format import ChatReading, choose_reading
from serve.chat_format.parser import AnswerParser
from serve.chat_format.parts import AnswerParts, CallPart
from serve.chat_format.reasoning import end_of_open_reasoning
from serve.openai.answers.responses import whole_message
from serve.openai.history import template_message

TOKENIZERS = {"kimi_k2": kimi, "minimax_m2": minimax}
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
        answers.append(stream.take(final=stopped or not rest))
        if stopped:
            break
    return answers


def pieces_of(reader: AnswerParser, answers: Sequence[Answer]) -> list[AnswerParts]:
    last = len(answers) - 1
    return [reader.take(*output, final=i == last) for i, output in enumerate(answers)]


def put_behind(added: AnswerParts, more: AnswerParts) -> None:
    """Adds the next piece."""
    added.reasoning += more.reasoning
    added.content += more.content
    for index, call in more.calls.items():
        so_far = added.calls.setdefault(index, CallPart(call.id, call.name))
        so_far.arguments += call.arguments


def whole_of(reader: AnswerParser, answers: Sequence[Answer]) -> AnswerParts:
    token_ids = tuple(token for ids, _ in answers for token in ids)
    return reader.take(token_ids, "".join(text for _, text in answers), final=True)


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


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_however_the_tokens_are_cut_the_deltas_add_up_to_the_whole(
    name: str, data: st.DataObject
) -> None:
    tokenizer = TOKENIZERS[name]()
    token_ids = data.draw(token_streams(name))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1))
    options = {
        "inside_reasoning": data.draw(st.booleans()),
        "schemas": data.draw(st.sampled_from([SCHEMAS, None])),
        "one_call": data.draw(st.booleans()),
        "skip_special": data.draw(st.booleans()),
    }
    stop = data.draw(st.sampled_from([(), ("e",), ("|>", "12"), (">!",)]))
    cuts = (sizes[i % len(sizes)] for i in count())
    answers = outputs(tokenizer, token_ids, cuts, stop, options["skip_special"])
    if not stop:
        text = tokenizer.decode(token_ids, options["skip_special"])
        assert "".join(piece for _, piece in answers) == text
    added = AnswerParts()
    for piece in pieces_of(parser(tokenizer, **options), answers):
        put_behind(added, piece)
    assert added == whole_of(parser(tokenizer, **options), answers)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_mark_held_back_for_a_stop_string_is_still_a_mark(name: str) -> None:
    """Its text, which may begin the stop string, comes in part before its token does."""
    tokenizer = TOKENIZERS[name]()
    token_ids = tokenizer.encode("a</think>b", add_special=True)
    added = AnswerParts()
    for piece in pieces_of(parser(tokenizer), outputs(tokenizer, token_ids, repeat(1), [">!"])):
        put_behind(added, piece)
    assert (added.reasoning, added.content) == ("a", "b")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_marks_are_marks_whether_or_not_the_text_has_special_tokens(name: str) -> None:
    """Also where the marks themselves are hidden from a text without them."""
    special = TOKENIZERS[name]().special_tokens
    hidden = tuple(replace(token, hidden=True) for token in special)
    tokenizer = replace(TOKENIZERS[name](), special_tokens=hidden)
    text = WELL_FORMED[name].replace("¦", "").replace("<|im_end|>", "")
    token_ids = tokenizer.encode(text, add_special=True)
    skipped, shown = (
        whole_of(
            parser(tokenizer, skip_special=skip),
            outputs(tokenizer, token_ids, repeat(2), skip_special=skip),
        )
        for skip in (True, False)
    )
    assert skipped == shown and skipped.calls


@pytest.mark.parametrize("name", TOKENIZERS)
def test_arguments_come_as_they_are_made(name: str) -> None:
    """A string of many tokens does not wait for its end."""
    tokenizer = TOKENIZERS[name]()
    text = WELL_FORMED[name].replace("¦", "")
    text = text.replace('{"s": "', '{"s": "' + "far " * 9).replace('a"', "far " * 9)
    answers = outputs(tokenizer, tokenizer.encode(text, add_special=True), repeat(1))
    pieces = [p.calls[0] for p in pieces_of(parser(tokenizer), answers) if 0 in p.calls]
    assert [piece.name for piece in pieces] == ["f"] + [None] * (len(pieces) - 1)
    assert "far far far" in "".join(piece.arguments for piece in pieces)
    assert max(len(piece.arguments) for piece in pieces) < 12


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_no_letter_vanishes_unless_it_follows_the_calls(name: str, data: st.DataObject) -> None:
    """Letters of any order of marks come out as reasoning, content, a name or an argument."""
    tokenizer = TOKENIZERS[name]()
    reading = choose_reading(tokenizer)
    ends = [i for i, mark in reading.marks.items() if "/minimax" in mark.text]
    ends += [i for i, mark in reading.marks.items() if mark.text.endswith("section_end|>")]
    marks = [[i] for i in reading.marks if i not in ends]
    letters = st.text(string.ascii_uppercase, min_size=1, max_size=3).map(tokenizer.encode)
    chosen = data.draw(st.lists(st.one_of(letters, st.sampled_from(marks)), max_size=12))
    token_ids = [token for part in chosen for token in part]
    parts = parser(tokenizer).take(token_ids, tokenizer.decode(token_ids), final=True)
    calls = [f"{call.id}{call.arguments}" for call in parts.calls.values()]
    written = "".join([parts.reasoning, parts.content, *calls])
    seen = [c for c in tokenizer.decode(token_ids) if c in string.ascii_uppercase]
    assert sorted(seen) == sorted(c for c in written if c in string.ascii_uppercase)


NAMES = st.text(string.ascii_letters + "_-.", min_size=1, max_size=8)
TEXTS = st.text(max_size=12).map(lambda text: text.strip("\n"))
VALUES = {
    "string": st.one_of(TEXTS, st.sampled_from(["</think>", "12", "null", "<|im_end|>", " a\n"])),
    "integer": st.integers(-(10**9), 10**9),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(st.integers() | TEXTS, max_size=3),
    "object": st.dictionaries(TEXTS, st.integers() | TEXTS | st.booleans(), max_size=3),
}


@st.composite
def calls_and_schemas(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    schemas: dict[str, Any] = {}
    calls = []
    for index in range(draw(st.integers(1, 3))):
        name = f"{draw(NAMES)}{index}"
        kinds = draw(st.dictionaries(NAMES, st.sampled_from(sorted(VALUES)), max_size=3))
        schemas[name] = {"properties": {key: {"type": kind} for key, kind in kinds.items()}}
        arguments = {key: draw(VALUES[kind]) for key, kind in kinds.items()}
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        call = {"id": f"functions.{name}:{index}", "type": "function", "function": function}
        calls.append(call)
    return calls, schemas


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_calls_read_from_an_answer_render_to_the_same_answer(
    name: str, data: st.DataObject
) -> None:
    """Also with special strings in what was said: they are text on the way out and back."""
    tokenizer, is_kimi = TOKENIZERS[name](), name == "kimi_k2"
    calls, schemas = data.draw(calls_and_schemas())
    message = {
        "role": "assistant",
        "reasoning_content": data.draw(TEXTS.filter(bool)),
        "content": data.draw(st.one_of(TEXTS, st.just("<|tool_calls_section_begin|>"))),
        "tool_calls": calls,
    }
    asked = [{"role": "user", "content": "go"}]
    prompt = tokenizer.encode_chat(asked, thinking=True)
    answered = [*asked, template_message(message, not is_kimi)]
    full = tokenizer.encode_chat(answered, add_generation_prompt=False)
    assert full[: len(prompt)] == prompt and end_of_open_reasoning(prompt, tokenizer)
    last = max(i for i, token in enumerate(full) if token in tokenizer.eos_token_ids)
    answers = full[len(prompt) : last]
    parts = parser(tokenizer, schemas=schemas).take(answers, tokenizer.decode(answers), final=True)
    read = whole_message(parts).model_dump(exclude_unset=True)
    assert parts.reasoning == message["reasoning_content"]
    assert parts.content == message["content"]
    for written, call in zip(calls, read["tool_calls"], strict=True):
        assert call["function"]["name"] == written["function"]["name"]
        assert json.loads(call["function"]["arguments"]) == json.loads(
            written["function"]["arguments"]
        )
        assert not is_kimi or call["id"] == written["id"]
    again = [*asked, template_message(read, not is_kimi)]
    assert tokenizer.encode_chat(again, add_generation_prompt=False) == full
