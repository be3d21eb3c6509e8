"""Items of responses and blocks of messages are the same however an answer is cut into outputs."""

from itertools import count
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from chat_tokenizers import TOKENIZERS
from cut_answers import SCHEMAS, Answer, outputs, parser, token_streams
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from serve.anthropic.content import ContentBlocks
from serve.openai.answer_items import Event
from serve.responses.output import OutputItems

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@st.composite
def answers_of(draw: st.DrawFn, name: str) -> tuple[list[Answer], list[Answer]]:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1))
    cuts = (sizes[i % len(sizes)] for i in count())
    pieces = outputs(TOKENIZERS[name](), draw(token_streams(name)), cuts)
    joined = (tuple(i for ids, _ in pieces for i in ids), "".join(text for _, text in pieces))
    return pieces, [joined]


def parts_of(name: str, answers: list[Answer]) -> Any:
    reader = parser(TOKENIZERS[name](), schemas=SCHEMAS)
    for number, (token_ids, text) in enumerate(answers):
        yield from reader.take_each(token_ids, text, final=number == len(answers) - 1)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_items_depend_on_no_cut(name: str, data: st.DataObject) -> None:
    def items(answers: list[Answer]) -> list[dict[str, Any]]:
        output = OutputItems("run", seals=False)
        for parts in parts_of(name, answers):
            list(output.take(parts, []))
        list(output.end(cut=False))
        return output.items

    pieces, joined = data.draw(answers_of(name))
    assert items(joined) == items(pieces)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_blocks_depend_on_no_cut_and_add_up_from_events(name: str, data: st.DataObject) -> None:
    shown = data.draw(st.booleans())

    def read(answers: list[Answer]) -> tuple[list[Event], list[dict[str, Any]]]:
        content = ContentBlocks(shows_thinking=shown)
        events = [event for parts in parts_of(name, answers) for event in content.take(parts)]
        return [*events, *content.end(cut=True)], content.items

    pieces, joined = data.draw(answers_of(name))
    events, blocks = read(pieces)
    assert read(joined)[1] == blocks
    for one, block in zip(added(events), blocks, strict=True):
        if "INVALID_JSON" not in block.get("input", ()):
            assert one == block


def added(events: list[Event]) -> list[dict[str, Any]]:
    """The blocks that Anthropic's client makes of the events."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    empty: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "m"}
    message = Message.model_validate(empty | {"content": [], "usage": usage})
    start: Any = {"type": "message_start", "message": message}
    buffers: dict[int, Any] = {}
    snapshot: Any = None
    for event in (start, *events):
        told = EVENTS.validate_python(event)
        try:
            snapshot = accumulate_event(event=told, current_snapshot=snapshot, json_bufs=buffers)
        except ValueError as error:  # Arguments that are no JSON.
            assert "JSON" in str(error)
    return [block.to_dict() for block in snapshot.content]
