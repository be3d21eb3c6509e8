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
OFF: Any = {"type": "disabled"}


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


def test_a_conversation_with_tools_goes_round(say: Callable[..., Served], connect: Connect) -> None:
    """What a client got and sends back with the results is rendered as the model wrote it."""
    server = say(ANSWERS["kimi_k2"])
    client = connect(server)
    with client.messages.stream(**ASKED, tools=TOOLS, thinking=ON) as stream:
        first = stream.get_final_message()
    results: Any = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "5 degrees"}
        for block in first.content
        if block.type == "tool_use"
    ]
    results[1] |= {"is_error": True, "content": [{"type": "text", "text": "no clock"}]}
    results.append({"type": "text", "text": "Hurry."})
    turns: Any = [USER, {"role": "assistant", "content": first.content}]
    turns.append({"role": "user", "content": results})
    again = client.messages.create(**{**ASKED, "messages": turns}, tools=TOOLS, thinking=ON)
    assert again.stop_reason == "tool_use"
    prompt = prompt_of(server)
    assert f"assistant<|im_middle|><think>{ANSWERS['kimi_k2']}<|im_end|>" in prompt
    assert "## Return of functions.weather:0\n5 degrees<|im_end|>" in prompt
    assert "## Return of functions.time:1\nError: no clock<|im_end|>" in prompt
    assert "user<|im_middle|>Hurry.<|im_end|>" in prompt


def test_thinking_turns_the_checkpoints_switch(
    say: Callable[..., Served], connect: Connect
) -> None:
    server = say("Fine.")
    client = connect(server)
    enabled: Any = {"type": "enabled"}
    for thinking, end in ((ON, "<think>"), (enabled, "<think>"), (OFF, "</think>")):
        message = client.messages.create(**ASKED, thinking=thinking)
        kind = "thinking" if end == "<think>" else "text"
        assert [block.type for block in message.content] == [kind]
        assert prompt_of(server).endswith(end)


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


@pytest.mark.parametrize(
    "arguments", ['{" "Oslo"}', "[1]", '{"a": 1} x', '{"a": NaN}', '{"a": 1', "[" * 10_000, "no"]
)
def test_arguments_that_are_no_object_are_kept_as_text(arguments: str) -> None:
    assert read_input(arguments, cut=False) == {"INVALID_JSON": arguments}


def test_arguments_that_were_no_object_go_back_as_the_model_wrote_them(
    say: Callable[..., Served], connect: Connect
) -> None:
    server = say("Fine.")
    use = {"type": "tool_use", "id": "x", "name": "time", "input": {"INVALID_JSON": '{"ci'}}
    turns: Any = [USER, {"role": "assistant", "content": [use]}, USER]
    connect(server).messages.create(**{**ASKED, "messages": turns})
    assert '<|tool_call_argument_begin|>{"ci<|tool_call_end|>' in prompt_of(server)


def test_one_call_at_a_time_if_the_client_says_so(
    say: Callable[..., Served], connect: Connect
) -> None:
    client = connect(say(f"</think>{KIMI_CALLS}"))
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    message = client.messages.create(**ASKED, tools=TOOLS, thinking=ON, tool_choice=choice)
    assert [block.type for block in message.content] == ["tool_use"]


def test_calls_are_text_where_none_may_be_made(
    say: Callable[..., Served], connect: Connect
) -> None:
    client = connect(say(f"Hm.</think>{KIMI_CALLS}"))
    message = client.messages.create(
        **ASKED, tools=TOOLS, thinking=ON, tool_choice={"type": "none"}
    )
    assert message.stop_reason == "end_turn"
    assert [block.type for block in message.content] == ["thinking", "text"]


def test_what_a_checkpoint_can_not_be_switched_to_is_refused(
    say: Callable[..., Served], connect: Connect, client: anthropic.Anthropic
) -> None:
    always = connect(say("Fine.", chat_format="minimax_m2"))
    with pytest.raises(anthropic.BadRequestError, match="no switch that turns its thinking off"):
        always.messages.create(**ASKED, thinking=OFF)
    given: Any = ({"thinking": ON}, {"output_config": {"effort": "low"}})
    for asked in given:
        with pytest.raises(anthropic.BadRequestError, match="no way to think"):
            client.messages.create(**ASKED, **asked)
