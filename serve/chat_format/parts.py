"""The parts of a chat answer: reasoning, content and tool calls, whole or a piece of each."""

from dataclasses import dataclass, field


@dataclass
class CallPart:
    """A tool call, or what one piece of the answer adds to it: only the first has id and name."""

    id: str | None = None
    name: str | None = None
    arguments: str = ""


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
