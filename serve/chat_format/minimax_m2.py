"""Parser for MiniMax-M2's answers: reasoning`</think>`, content, and a section of XML calls.

The marks of the section are special tokens, its tags are ordinary text:

    <minimax:tool_call>
    <invoke name="NAME">
    <parameter name="KEY">VALUE</parameter>
    </invoke>
    </minimax:tool_call>
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serve.chat_format.json_values import allowed_types, json_text
from serve.chat_format.marked_text import Mark, Piece
from serve.chat_format.minimax_m2_grammar import END_OF_VALUE, call_rules
from serve.chat_format.parts import ToolSpec
from serve.chat_format.reader import AnswerReader, escaped

SECTION = Mark("<minimax:tool_call>")
END_OF_SECTION = Mark("</minimax:tool_call>")
INVOKE = re.compile(r"""<invoke name=(["']?)([\w.-]+)\1>""")
IN_INVOKE = re.compile(r"""<parameter name=(["']?)([^"'<>]+)\1>|</invoke>""")


class MiniMaxReader(AnswerReader):
    """Parser for MiniMax's format. Strings are streamed, other values are returned when complete.

    A value that is not JSON of a type that its schema allows becomes a string.
    """

    name = "minimax_m2"
    section, end_of_section = SECTION, END_OF_SECTION
    call_marks = (SECTION, END_OF_SECTION)
    blanks = "\n"
    always_reasons = True
    arguments_as_objects = True

    @staticmethod
    def grammar(tools: Sequence[ToolSpec], once: bool) -> list[str]:
        return list(call_rules(tools, once))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._scan: Callable[[], bool] = self._seek_invoke
        self._types: frozenset[str] = frozenset()
        self._root: Mapping[str, Any] = {}
        self._properties: Mapping[str, Any] = {}
        self._num_parameters = 0

    def _in_section(self, piece: Piece) -> None:
        if piece == END_OF_SECTION:
            self._close_call()
            self._leave_section()
            return
        self._held += str(piece)
        # A tag ends with ">". The growing text is not searched before that arrives.
        while (self._scan == self._grow_string or ">" in self._held) and self._scan():
            pass

    def _seek_invoke(self) -> bool:
        """Seek the next call. Like all steps, returns whether more may be parsed."""
        found = INVOKE.search(self._held)
        if not found:
            return False
        self._take(found)
        self._begin_call(found[2], self._new_id())
        self._root = (self._schemas or {}).get(found[2], {})
        properties = self._root.get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._num_parameters = 0
        self._scan = self._seek_parameter
        return True

    def _seek_parameter(self) -> bool:
        found = IN_INVOKE.search(self._held)
        if not found:
            return False
        self._take(found)
        if found[2] is None:
            self._close_call()
            return self._read == self._in_section
        comma = ", " if self._num_parameters else "{"
        self._add_arguments(f'{comma}"{escaped(found[2])}": ')
        self._num_parameters += 1
        self._types = allowed_types(self._properties.get(found[2]), self._root)
        if self._types == {"string"}:
            self._add_arguments('"')
            self._scan = self._grow_string
        else:
            self._scan = self._await_value
        return True

    def _grow_string(self) -> bool:
        text, end, rest = self._held.partition(END_OF_VALUE)
        if not end:
            kept = _begun_end(text)
            text, rest = text[: len(text) - kept], text[len(text) - kept :]
        self._add_arguments(escaped(text) + ('"' if end else ""))
        self._held = rest
        self._scan = self._seek_parameter if end else self._grow_string
        return bool(end)

    def _await_value(self) -> bool:
        text, end, rest = self._held.partition(END_OF_VALUE)
        if not end:
            return False
        self._add_arguments(json_text(text, self._types))
        self._held = rest
        self._scan = self._seek_parameter
        return True

    def _take(self, tag: re.Match[str]) -> None:
        """Consume a tag. Text before it is not part of a call."""
        self._give_back(self._held[: tag.start()])
        self._held = self._held[tag.end() :]

    def _close_call(self) -> None:
        """End the open call, even if the model did not close its tags."""
        if self._scan == self._seek_invoke:
            return
        if self._scan == self._grow_string:
            self._add_arguments(escaped(self._held) + '"')
        elif self._scan == self._await_value:
            self._add_arguments(json_text(self._held, self._types))
        if self._scan != self._seek_parameter:
            self._held = ""
        self._add_arguments("}" if self._num_parameters else "{}")
        self._scan = self._seek_invoke
        if self._one_call:
            self._begin(self._behind_calls)

    def _end(self) -> None:
        """Return a value that was cut off unchanged."""
        if self._read == self._in_section and self._scan in (self._grow_string, self._await_value):
            whole = self._scan == self._await_value
            self._add_arguments(self._held if whole else escaped(self._held))
            self._held = ""
        super()._end()


def _begun_end(text: str) -> int:
    """Return the length of the text's suffix that may begin END_OF_VALUE."""
    sizes = range(min(len(text), len(END_OF_VALUE) - 1), 0, -1)
    return next((size for size in sizes if END_OF_VALUE.startswith(text[-size:])), 0)
