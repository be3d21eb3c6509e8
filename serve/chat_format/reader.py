"""Reads reasoning, content and tool calls from an answer, piece by piece.

Every model writes them with marks of its own; what all share is here. A mark that is out of place
is text, and so is a call that can't be read: nothing the model wrote vanishes, but for blanks
between calls and for what follows them, which no template could give back to the model.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from serve.chat_format.marked_text import Mark, Piece
from serve.chat_format.parts import AnswerParts, CallPart, ToolSpec

THINK, END_OF_THINK = Mark("<think>"), Mark("</think>")
Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each function's arguments, by name."""


class AnswerReader:
    """One model's way, and what reads an answer in it; what may come next is the method that reads
    it.

    inside_reasoning: where the prompt ends. schemas: of the functions on offer, None where no
    calls are to be read. one_call: whatever follows the first call is left out. new_id: names
    calls that the model gives no name.
    """

    name: str
    section: Mark
    """What calls begin with; it ends reasoning too."""
    end_of_section: Mark
    call_marks: tuple[Mark, ...]
    """Those of calls, which must be special tokens."""
    blanks = ""
    """What the template puts around reasoning and content."""
    always_reasons = False
    """Whether an answer begins with reasoning unless the prompt ends with its end."""
    arguments_as_objects = False
    """How its template reads the arguments of calls in the history; else as the JSON text the model
    wrote."""

    @staticmethod
    def grammar(tools: Sequence[ToolSpec], once: bool) -> list[str]:
        """Rules of `calls`, for llguidance: one call or several of any of the functions, the
        arguments of strict ones by their schemas."""
        raise NotImplementedError

    @staticmethod
    def with_known_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages with call ids that the model knows; templates that do not show ids
        need no others."""
        return messages

    def __init__(
        self,
        *,
        inside_reasoning: bool,
        schemas: Schemas | None,
        one_call: bool,
        new_id: Callable[[], str],
    ) -> None:
        self._schemas = schemas
        self._one_call = one_call
        self._new_id = new_id
        self._parts = AnswerParts()
        self._num_calls = 0
        self._untouched = True  # nothing was read yet
        self._waiting = ""  # blanks that are content only if more of it follows
        self._begun = False  # the part under way has some text
        self._held = ""  # text in a section whose meaning is not clear yet
        self._read: Callable[[Piece], None] = (
            self._in_reasoning if inside_reasoning else self._in_content
        )

    def take(self, pieces: Iterable[Piece], *, final: bool) -> AnswerParts:
        """Reads on; returns what these pieces add to the answer."""
        self._parts = AnswerParts()
        for piece in pieces:
            self._read(piece)
        if final:
            self._end()
        return self._parts

    def _in_reasoning(self, piece: Piece) -> None:
        if piece == END_OF_THINK:
            self._begin(self._in_content)
        elif piece == self.section:
            self._begin(self._in_content)
            self._in_content(piece)
        elif piece != THINK or not self._untouched:
            self._parts.reasoning += self._trimmed(piece)
        self._untouched = False

    def _in_content(self, piece: Piece) -> None:
        if piece == THINK and self._untouched:
            self._begin(self._in_reasoning)
        elif piece == self.section and self._schemas is not None:
            self._begin(self._in_section)
        else:
            self._parts.content += self._trimmed(piece)
        self._untouched = False

    def _in_section(self, piece: Piece) -> None:
        """Between the calls of a section."""
        raise NotImplementedError

    def _behind_calls(self, piece: Piece) -> None:
        if piece == self.section and not self._one_call:
            self._begin(self._in_section)

    def _leave_section(self) -> None:
        self._give_back(self._held)
        self._begin(self._behind_calls if self._num_calls else self._in_content)

    def _begin(self, read: Callable[[Piece], None]) -> None:
        self._read = read
        self._waiting, self._begun, self._held = "", False, ""

    def _end(self) -> None:
        """The answer is over, by itself or cut."""
        if self._read == self._in_reasoning:
            self._parts.reasoning += self._waiting
        elif self._read == self._in_content:
            self._parts.content += self._waiting
        else:
            self._give_back(self._held)

    def _trimmed(self, piece: Piece) -> str:
        """The text without blanks around it: those at its end wait for what follows."""
        text = self._waiting + str(piece)
        if not self._begun:
            text = text.lstrip(self.blanks)
        kept = text.rstrip(self.blanks)
        self._waiting = text[len(kept) :]
        self._begun |= bool(kept)
        return kept

    def _give_back(self, text: str) -> None:
        """What is no call after all is content."""
        if text.strip():
            self._parts.content += text

    def _begin_call(self, name: str, call_id: str) -> None:
        self._parts.calls[self._num_calls] = CallPart(call_id, name)
        self._num_calls += 1

    def _add_arguments(self, text: str) -> None:
        call = self._parts.calls.setdefault(self._num_calls - 1, CallPart())
        call.arguments += text


def escaped(text: str) -> str:
    """Text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
