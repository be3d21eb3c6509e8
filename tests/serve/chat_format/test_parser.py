"""Reading chat answers: cuts don't matter, nothing vanishes, calls go back as they came."""

import json
import string
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import pytest
from chat_tokenizers import TOKENIZERS
from cut_answers import SCHEMAS, WELL_FORMED, Answer, outputs, parser, token_streams
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.chat_format.format import CHAT_FORMATS, choose_reading
from serve.chat_format.parser import AnswerParser
from serve.chat_format.parts import AnswerParts, CallPart
from serve.chat_format.reasoning import end_of_open_reasoning
from serve.openai.chat import whole_message
from serve.openai.history import template_messages


def pieces_of(reader: AnswerParser, answers: Sequence[Answer]) -> list[AnswerParts]:
    last = len(answers) - 1
    return [reader.take(*output, final=i == last) for i, output in enumerate(answers)]


def put_behind(added: AnswerParts, more: AnswerParts) -> None:
    added.reasoning += more.reasoning
    added.content += more.content
    for index, call in more.calls.items():
        so_far = added.calls.setdefault(index, CallPart(call.id, call.name))
        so_far.arguments += call.arguments


def whole_of(reader: AnswerParser, answers: Sequence[Answer]) -> AnswerParts:
    token_ids = tuple(token for ids, _ in answers for token in ids)
    return reader.take(token_ids, "".join(text for _, text in answers), final=True)


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
def test_reasoning_may_be_empty(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    token_ids = tokenizer.encode("</think>b", add_special=True)
    read = whole_of(parser(tokenizer), outputs(tokenizer, token_ids, repeat(1)))
    assert (read.reasoning, read.content) == ("", "b")


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
def test_a_call_that_is_cut_is_not_read_as_whole(name: str) -> None:
    """Wherever an answer ends, by its length or at a stop string: arguments that are not whole are
    no JSON, so that no client runs them."""
    tokenizer = TOKENIZERS[name]()
    token_ids = tokenizer.encode(WELL_FORMED[name].replace("¦", ""), add_special=True)
    every = len(token_ids)
    whole = whole_of(parser(tokenizer), outputs(tokenizer, token_ids, repeat(every)))
    for end in range(1, every):
        cut = whole_of(parser(tokenizer), outputs(tokenizer, token_ids[:end], repeat(every)))
        for index, call in cut.calls.items():
            full = whole.calls[index].arguments
            assert call.arguments == full or not is_json(call.arguments), call.arguments


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


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
    answered = [*asked, *template_messages([message], CHAT_FORMATS[name])]
    full = tokenizer.encode_chat(answered, add_generation_prompt=False)
    assert full[: len(prompt)] == prompt and end_of_open_reasoning(prompt, tokenizer)
    last = max(i for i, token in enumerate(full) if token in tokenizer.eos_token_ids)
    answers = full[len(prompt) : last]
    parts = parser(tokenizer, schemas=schemas).take(answers, tokenizer.decode(answers), final=True)
    read = whole_message(parts)
    assert parts.reasoning == message["reasoning_content"]
    assert parts.content == message["content"]
    for written, call in zip(calls, read["tool_calls"], strict=True):
        assert call["function"]["name"] == written["function"]["name"]
        assert json.loads(call["function"]["arguments"]) == json.loads(
            written["function"]["arguments"]
        )
        assert not is_kimi or call["id"] == written["id"]
    again = [*asked, *template_messages([read], CHAT_FORMATS[name])]
    assert tokenizer.encode_chat(again, add_generation_prompt=False) == full
