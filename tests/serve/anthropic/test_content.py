"""Blocks of messages: the same however an answer is cut into outputs, and its events tell them."""

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

from serve.anthropic.content import Content, NamedEvent

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def read(name: str, answers: list[Answer], shown: bool) -> tuple[list[NamedEvent], Content]:
    """The events and the content of an answer that comes so."""
    reader, content = parser(TOKENIZERS[name](), schemas=SCHEMAS), Content(shows_thinking=shown)
    events: list[NamedEvent] = []
    for number, (token_ids, text) in enumerate(answers):
        for parts in reader.take_each(token_ids, text, final=number == len(answers) - 1):
            events += content.take(parts)
    return [*events, *content.end(cut=True)], content


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_blocks_depend_on_no_cut_and_add_up_from_events(name: str, data: st.DataObject) -> None:
    token_ids = data.draw(token_streams(name))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1))
    shown = data.draw(st.booleans())
    cuts = (sizes[i % len(sizes)] for i in count())
    answers = outputs(TOKENIZERS[name](), token_ids, cuts)
    events, content = read(name, answers, shown)
    joined = (tuple(i for ids, _ in answers for i in ids), "".join(text for _, text in answers))
    assert read(name, [joined], shown)[1].blocks == content.blocks
    told = added(events)
    for one, block in zip(told, content.blocks, strict=True):
        if "INVALID_JSON" not in block.get("input", ()):
            assert one == block


def added(events: list[NamedEvent]) -> list[dict[str, Any]]:
    """The blocks that Anthropic's client makes of the events."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    empty: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "m"}
    message = Message.model_validate(empty | {"content": [], "usage": usage})
    snapshot: Any = accumulate_event(
        event=EVENTS.validate_python({"type": "message_start", "message": message}),
        current_snapshot=None,
        json_bufs=(buffers := {}),
    )
    for event in events:
        try:
            snapshot = accumulate_event(
                event=EVENTS.validate_python(event), current_snapshot=snapshot, json_bufs=buffers
            )
        except ValueError as error:  # Arguments that are no JSON.
            assert "JSON" in str(error)
    return [block.to_dict() for block in snapshot.content]
