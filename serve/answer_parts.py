"""What a chat answer consists of: reasoning, content and tool calls, whole or a piece of each."""

from dataclasses import dataclass, field
from typing import Any

from serve.responses import FunctionCall, Message, ToolCall


@dataclass
class CallPart:
    """A tool call, or what one piece of the answer adds to it: only the first has id and name."""

    id: str | None = None
    name: str | None = None
    arguments: str = ""

    def told(self, index: int) -> ToolCall:
        """The call as clients read it."""
        function: dict[str, Any] = {"arguments": self.arguments}
        if self.id is None:
            return ToolCall(index=index, function=FunctionCall(**function))
        function["name"] = self.name
        return ToolCall(index=index, id=self.id, type="function", function=FunctionCall(**function))


@dataclass
class AnswerParts:
    """An answer, or what one piece adds to it; calls by their place in the answer."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, CallPart] = field(default_factory=dict)

    def add(self, more: "AnswerParts") -> None:
        """Puts the next piece behind this one."""
        self.reasoning += more.reasoning
        self.content += more.content
        for index, call in more.calls.items():
            so_far = self.calls.setdefault(index, CallPart(call.id, call.name))
            so_far.arguments += call.arguments

    def message(self) -> Message:
        """The whole answer; content is null where there is only something else."""
        told = self._told()
        return Message(role="assistant", content=self.content or (None if told else ""), **told)

    def delta(self, first: bool) -> Message:
        """A streamed piece; the role comes with the first."""
        told = self._told()
        if self.content or not told:
            told["content"] = self.content
        return Message(role="assistant", **told) if first else Message(**told)

    def _told(self) -> dict[str, Any]:
        """Everything but the content. vLLM calls reasoning `reasoning`, SGLang the other."""
        told: dict[str, Any] = {}
        if self.reasoning:
            told |= {"reasoning": self.reasoning, "reasoning_content": self.reasoning}
        if self.calls:
            told["tool_calls"] = [call.told(index) for index, call in self.calls.items()]
        return told
