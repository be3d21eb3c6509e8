"""Parses reasoning, content and tool calls from an answer, piece by piece.

This is the part shared by all models; each has its own marks. A misplaced mark is text, and so is a
malformed call. Nothing that the model wrote is lost, except blanks between calls and text after
them, which no template could give back to the model.
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
    """Base class of parsers, one for each chat format. `_read` is the method for the next piece.

    Args:
        inside_reasoning: whether the prompt ends inside the reasoning.
        schemas: those of the offered functions; None if calls are not parsed.
        one_call: drop everything after the first call.
        new_id: returns an id for a call to which the model gave none.
    """

    name: str
    section: Mark
    """The mark that begins calls. It ends reasoning too."""
    end_of_section: Mark
    call_marks: tuple[Mark, ...]
    """The marks of calls, which must be special tokens."""
    blanks = ""
    """Characters that the template puts around reasoning and content."""
    always_reasons = False
    """True if answers begin with reasoning, unless the prompt ends with the end of it."""
    arguments_as_objects = False
    """True if the template reads call arguments in a history as objects, not as JSON text."""

    @staticmethod
    def grammar(tools: Sequence[ToolSpec], once: bool) -> list[str]:
        """Return llguidance rules of `calls`: one or several; strict ones match their schemas."""
        raise NotImplementedError

    @staticmethod
    def with_known_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with call ids that the model knows, if its template shows ids."""
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
        self._untouched = True  # no piece was read yet
        self._waiting = ""  # blanks that are content only if more content follows
        self._begun = False  # the current part has some text
        self._held = ""  # text in a section that is not parsed yet
        self._read: Callable[[Piece], None] = (
            self._in_reasoning if inside_reasoning else self._in_content
        )

    def take(self, pieces: Iterable[Piece], *, final: bool) -> AnswerParts:
        """Parse pieces and return the parts that they add to the answer."""
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
        """Parse a piece between the calls of a section."""
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
        """End the answer, which may be cut off."""
        if self._read == self._in_reasoning:
            self._parts.reasoning += self._waiting
        elif self._read == self._in_content:
            self._parts.content += self._waiting
        else:
            self._give_back(self._held)

    def _trimmed(self, piece: Piece) -> str:
        """Return the text without blanks around it. Blanks at its end wait for the next piece."""
        text = self._waiting + str(piece)
        if not self._begun:
            text = text.lstrip(self.blanks)
        kept = text.rstrip(self.blanks)
        self._waiting = text[len(kept) :]
        self._begun |= bool(kept)
        return kept

    def _give_back(self, text: str) -> None:
        """Add text that is not a valid call to the content."""
        if text.strip():
            self._parts.content += text

    def _begin_call(self, name: str, call_id: str) -> None:
        self._parts.calls[self._num_calls] = CallPart(call_id, name)
        self._num_calls += 1

    def _add_arguments(self, text: str) -> None:
        call = self._parts.calls.setdefault(self._num_calls - 1, CallPart())
        call.arguments += text


def escaped(text: str) -> str:
    """Return the text as it appears between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
