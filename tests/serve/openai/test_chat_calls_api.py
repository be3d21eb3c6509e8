"""Reasoning and tool calls over HTTP, with OpenAI's own client as the judge."""

import json
from typing import Any

import openai
import pytest
from called_tools import ANSWERS, KIMI_CALLS, THINKING, prompt_of
from called_tools import CHAT_TOOLS as TOOLS
from chat_tokenizers import kimi
from fake_server import Serve, Served
from scripted_engine import AnyGrammars

from serve.chat_format.format import choose_reading

USER: Any = {"role": "user", "content": "How is Oslo?"}


def ask(server: Served, **given: Any) -> Any:
    asked: dict[str, Any] = {"model": "fake", "messages": [USER], "extra_body": THINKING, **given}
    return server.openai.chat.completions.create(**asked)


def streamed(server: Served, **given: Any) -> tuple[dict[str, Any], list[Any]]:
    """The message that a client puts together from the deltas, and the chunks."""
    chunks = list(ask(server, stream=True, **given))
    message: dict[str, Any] = {"reasoning": "", "content": "", "calls": []}
    for chunk in chunks:
        delta = chunk.choices[0].delta
        assert getattr(delta, "reasoning", "") == getattr(delta, "reasoning_content", "")
        message["reasoning"] += getattr(delta, "reasoning", None) or ""
        message["content"] += delta.content or ""
        for call in delta.tool_calls or ():
            if call.index == len(message["calls"]):
                assert call.id and call.type == "function" and call.function.name
                message["calls"].append([call.id, call.function.name, ""])
            else:
                arguments = {"arguments": call.function.arguments}
                assert call.to_dict() == {"index": call.index, "function": arguments}
            message["calls"][call.index][2] += call.function.arguments
    return message, chunks


@pytest.mark.parametrize("chat_format", ANSWERS)
def test_whole_and_streamed_answers_have_the_same_reasoning_content_and_calls(
    say: Serve, chat_format: str
) -> None:
    server = say(ANSWERS[chat_format], chat_format=chat_format)
    whole = ask(server, tools=TOOLS).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.reasoning == whole.message.reasoning_content == "I look it up."
    assert whole.message.content == "One moment."
    calls = [(c.function.name, json.loads(c.function.arguments)) for c in whole.message.tool_calls]
    assert calls == [("weather", {"city": "Oslo", "days": 2}), ("time", {})]
    message, chunks = streamed(server, tools=TOOLS)
    assert (message["reasoning"], message["content"]) == ("I look it up.", "One moment.")
    assert [(name, json.loads(arguments)) for _, name, arguments in message["calls"]] == calls
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    if chat_format == "kimi_k2":
        ids = [call.id for call in whole.message.tool_calls]
        assert ids == ["functions.weather:0", "functions.time:1"]
        assert [call[0] for call in message["calls"]] == ids


def test_a_conversation_with_tools_goes_round(say: Serve) -> None:
    """An answer that a client sends back with results is rendered as the model wrote it."""
    server = say(ANSWERS["kimi_k2"])
    first = ask(server, tools=TOOLS).choices[0].message
    history = [USER, first.model_dump(exclude_none=True)]
    for call in first.tool_calls:
        history.append({"role": "tool", "tool_call_id": call.id, "content": "5 degrees"})
    assert ask(server, messages=history, tools=TOOLS).choices[0].finish_reason == "tool_calls"
    prompt = prompt_of(server)
    assert f"assistant<|im_middle|><think>{ANSWERS['kimi_k2']}<|im_end|>" in prompt
    assert "## Return of functions.time:1\n5 degrees" in prompt


def test_reasoning_is_left_out_or_content_where_it_is_not_asked_for(say: Serve) -> None:
    off = {"chat_template_kwargs": {"thinking": False}}
    whole = ask(say("Fine, <b>really</b>."), extra_body=off).choices[0]
    assert whole.message.content == "Fine, <b>really</b>."
    assert whole.finish_reason == "stop" and not hasattr(whole.message, "reasoning")
    unread = say("a</think>b", reading=choose_reading(kimi(), "none"))
    assert ask(unread).choices[0].message.content == "a</think>b"
    server = say(ANSWERS["kimi_k2"])
    quiet = {"tools": TOOLS, "extra_body": {**THINKING, "include_reasoning": False}}
    message = ask(server, **quiet).choices[0].message
    assert message.content == "One moment." and not hasattr(message, "reasoning")
    put_together, _ = streamed(server, **quiet)
    assert (put_together["reasoning"], put_together["content"]) == ("", "One moment.")
    with pytest.raises(openai.BadRequestError, match="separate_reasoning"):
        ask(server, extra_body={"separate_reasoning": False})


def test_every_choice_is_read_by_itself(say: Serve) -> None:
    server = say("a</think>b", f"c</think>{KIMI_CALLS}", "d")
    choices = ask(server, n=3, tools=TOOLS).choices
    assert [choice.message.reasoning for choice in choices] == ["a", "c", "d"]
    assert [choice.finish_reason for choice in choices] == ["stop", "tool_calls", "stop"]
    assert [choice.message.content for choice in choices] == ["b", None, None]


def test_every_token_has_its_logprob_whatever_it_is_part_of(say: Serve) -> None:
    server = say(ANSWERS["kimi_k2"])
    whole = ask(server, tools=TOOLS, logprobs=True)
    spelled = [entry.token for entry in whole.choices[0].logprobs.content]
    assert len(spelled) == whole.usage.completion_tokens
    assert "</think>" in spelled and "<|tool_call_end|>" in spelled
    _, chunks = streamed(server, tools=TOOLS, logprobs=True)
    assert [e.token for c in chunks for e in c.choices[0].logprobs.content] == spelled


def test_calls_are_text_where_no_tools_are_offered(say: Serve) -> None:
    server = say(f"Hm.</think>{KIMI_CALLS}")
    for given in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        whole = ask(server, **given).choices[0]
        assert whole.message.content == KIMI_CALLS and whole.finish_reason == "stop"


def test_calls_end_the_reasoning_and_text_behind_them_is_left_out(say: Serve) -> None:
    for said, reasoning in ((f"Hm.{KIMI_CALLS}", "Hm."), (f"</think>{KIMI_CALLS}And?", "")):
        message, _ = streamed(say(said), tools=TOOLS)
        assert (message["reasoning"], message["content"]) == (reasoning, "")
        assert len(message["calls"]) == 2


def test_a_named_function_ends_with_stop_as_openai_has_it(say: Serve) -> None:
    pytest.importorskip("llguidance")
    server = say(f"</think>{KIMI_CALLS}", grammars=AnyGrammars())
    named = {"type": "function", "function": {"name": "weather"}}
    assert ask(server, tools=TOOLS, tool_choice=named).choices[0].finish_reason == "stop"
    required = ask(server, tools=TOOLS, tool_choice="required").choices[0]
    assert required.finish_reason == "tool_calls"
