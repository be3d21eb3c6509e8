"""Tool calls read from the text of an answer that consists of them."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eagle3_jax.engine import RequestOutput
from serve.choices import ChoiceState
from serve.logprobs import ChatLogprobs
from serve.responses import ChatChoice, ChatChunkChoice, FunctionCall, Message, ToolCall

HEADER = re.compile(
    r"<\|tool_call_begin\|>(functions\.(.+?):\d+)<\|tool_call_argument_begin\|>", re.DOTALL
)
LogprobsOfPart = Callable[[ChoiceState | RequestOutput], ChatLogprobs | None]
DECODER = json.JSONDecoder()


def read_tool_calls(text: str) -> tuple[list[ToolCall], bool]:
    """The calls in their order, and whether the last one is complete.

    A call ends where its JSON does, so that marks inside its strings are text.
    """
    calls: list[ToolCall] = []
    complete, position = True, 0
    while match := HEADER.search(text, position):
        try:
            _, position = DECODER.raw_decode(text, match.end())
        except json.JSONDecodeError:
            complete, position = False, len(text)
        function = FunctionCall(name=match[2], arguments=text[match.end() : position])
        calls.append(ToolCall(index=len(calls), id=match[1], type="function", function=function))
    return calls, complete


@dataclass
class ToolCallForm:
    """Chat answers that are tool calls; streamed, each call comes whole.

    As OpenAI has it, such an answer ends with "tool_calls", but with "stop" where the request named
    the function.
    """

    logprobs: LogprobsOfPart
    named: bool
    id_prefix: str = "chatcmpl"
    whole_object: str = "chat.completion"
    chunk_object: str = "chat.completion.chunk"
    prompt_in_choice: bool = False
    _texts: dict[int, str] = field(default_factory=dict)
    _sent: dict[int, int] = field(default_factory=dict)

    def whole(self, state: ChoiceState, shared: dict[str, Any]) -> ChatChoice:
        """A finished choice; a call that the length limit cut is as long as it got."""
        calls, _ = read_tool_calls("".join(state.text))
        message = Message(role="assistant", content=None, tool_calls=calls)
        return ChatChoice(**self._ended(shared), logprobs=self.logprobs(state), message=message)

    def piece(
        self, state: ChoiceState, output: RequestOutput, first: bool, shared: dict[str, Any]
    ) -> ChatChunkChoice:
        """One output of a choice, with the calls that are complete by it."""
        index = state.index
        text = self._texts[index] = self._texts.get(index, "") + output.text
        calls, complete = read_tool_calls(text)
        if not complete and output.finish_reason is None:
            calls = calls[:-1]
        sent = self._sent.get(index, 0)
        self._sent[index] = len(calls)
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if calls[sent:]:
            delta["tool_calls"] = calls[sent:]
        told = self.logprobs(output)
        return ChatChunkChoice(**self._ended(shared), logprobs=told, delta=Message(**delta))

    def _ended(self, shared: dict[str, Any]) -> dict[str, Any]:
        if shared["finish_reason"] != "stop" or self.named:
            return shared
        return shared | {"finish_reason": "tool_calls"}
