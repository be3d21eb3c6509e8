"""Thinking and tools in messages, whole, streamed and sent back."""

from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from called_tools import ANSWERS, KIMI_CALLS, PARAMETERS, prompt_of
from fake_server import Served

from serve.anthropic.content import read_input

Connect = Callable[..., anthropic.Anthropic]
TOOLS: Any = [
    {"name": "weather", "description": "Weather in a city", "input_schema": PARAMETERS},
    {"name": "time", "input_schema": {"type": "object"}},
]
USER: Any = {"role": "user", "content": "How is Oslo?"}
ASKED: dict[str, Any] = {"model": "fake", "messages": [USER], "max_tokens": 200}
ON: Any = {"type": "adaptive"}


@pytest.mark.parametrize("chat_format", ANSWERS)
def test_whole_and_streamed_answers_have_the_same_blocks(
    say: Callable[..., Served], connect: Connect, chat_format: str
) -> None:
    client = connect(say(ANSWERS[chat_format], chat_format=chat_format))
    asked = {**ASKED, "tools": TOOLS, "thinking": ON}
    whole = client.messages.create(**asked)
    assert whole.stop_reason == "tool_use"
    thinking, text, *calls = whole.content
    assert thinking.type == "thinking" and thinking.thinking == "I look it up."
    assert thinking.signature
    assert text.type == "text" and text.text == "One moment."
    assert [(call.name, call.input) for call in calls if call.type == "tool_use"] == [
        ("weather", {"city": "Oslo", "days": 2}),
        ("time", {}),
    ]
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    assert streamed.stop_reason == "tool_use" and streamed.usage == whole.usage
    drawn = {"id"} if chat_format == "minimax_m2" else set()  # Its calls have no names.
    for one, other in zip(streamed.content, whole.content, strict=True):
        assert one.to_dict().keys() == other.to_dict().keys()
        assert one.model_dump(exclude={*drawn, "parsed_output"}) == other.model_dump(exclude=drawn)


def test_thinking_that_is_not_shown_comes_back_in_its_signature(
    say: Callable[..., Served], connect: Connect
) -> None:
    server = say("Let me see: \u00fc.</think>Fine.")
    client = connect(server)
    asked: dict[str, Any] = {**ASKED, "tools": TOOLS, "thinking": {**ON, "display": "omitted"}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        kinds = [e.delta.type for e in stream if e.type == "content_block_delta"]
        assert "thinking_delta" not in kinds and kinds.count("signature_delta") == 1
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        block = message.content[0]
        assert block.type == "thinking" and not block.thinking
        turns = [USER, {"role": "assistant", "content": message.content}, USER]
        call = {"type": "tool_use", "id": "functions.time:0", "name": "time", "input": {}}
        turns[1]["content"] = [block, call]
        client.messages.create(**{**asked, "messages": turns})
        assert "<think>Let me see: \u00fc.</think><|tool_calls_section_begin|>" in prompt_of(server)


def test_an_answer_that_is_cut_keeps_what_there_is(
    say: Callable[..., Served], connect: Connect
) -> None:
    client = connect(say(f"</think>{KIMI_CALLS}"))
    lengths: set[int] = set()
    for size in range(8, 30):
        asked = {**ASKED, "max_tokens": size, "tools": TOOLS, "thinking": ON}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        assert whole.stop_reason == streamed.stop_reason
        calls = [block.model_dump() for block in whole.content]
        assert [b.model_dump(exclude={"parsed_output"}) for b in streamed.content] == calls
        lengths.add(len(calls[0].get("input", ())))
    assert lengths >= {0, 1, 2}


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    bad = ['{" "Oslo"}', "[1]", '{"a": 1} x', '{"a": NaN}', '{"a": 1', "[" * 10_000, "no"]
    for arguments in bad:
        assert read_input(arguments, cut=False) == {"INVALID_JSON": arguments}


def test_arguments_that_were_no_object_go_back_as_the_model_wrote_them(
    say: Callable[..., Served], connect: Connect
) -> None:
    server = say("Fine.")
    use = {"type": "tool_use", "id": "x", "name": "time", "input": {"INVALID_JSON": '{"ci'}}
    turns: Any = [USER, {"role": "assistant", "content": [use]}, USER]
    connect(server).messages.create(**{**ASKED, "messages": turns})
    assert '<|tool_call_argument_begin|>{"ci<|tool_call_end|>' in prompt_of(server)


def test_one_call_at_a_time_or_none_if_the_client_says_so(
    say: Callable[..., Served], connect: Connect
) -> None:
    client = connect(say(f"Hm.</think>{KIMI_CALLS}"))
    choices: list[tuple[Any, str, list[str]]] = [
        ({"type": "auto", "disable_parallel_tool_use": True}, "tool_use", ["thinking", "tool_use"]),
        ({"type": "none"}, "end_turn", ["thinking", "text"]),
    ]
    for choice, reason, kinds in choices:
        message = client.messages.create(**ASKED, tools=TOOLS, thinking=ON, tool_choice=choice)
        assert message.stop_reason == reason
        assert [block.type for block in message.content] == kinds


def test_thinking_that_a_checkpoint_has_not_is_refused(client: anthropic.Anthropic) -> None:
    given: Any = ({"thinking": ON}, {"output_config": {"effort": "low"}})
    for asked in given:
        with pytest.raises(anthropic.BadRequestError, match="no way to think"):
            client.messages.create(**ASKED, **asked)
