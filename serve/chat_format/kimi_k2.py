"""Parser for Kimi's answers: `<think>`reasoning`</think>`, content, and a section of calls.

Every call names its function and gives the arguments as JSON; all marks are special tokens.
"""

import json
import re
from collections.abc import Sequence

from serve.chat_format.kimi_ids import with_known_ids
from serve.chat_format.marked_text import Mark, Piece
from serve.chat_format.parts import JSON_OPTIONS, ToolSpec
from serve.chat_format.reader import AnswerReader

SECTION = Mark("<|tool_calls_section_begin|>")
END_OF_SECTION = Mark("<|tool_calls_section_end|>")
CALL = Mark("<|tool_call_begin|>")
ARGUMENTS = Mark("<|tool_call_argument_begin|>")
END_OF_CALL = Mark("<|tool_call_end|>")
HEADER = re.compile(r"\s*(?:functions\.)?([\w.-]+)(?::\d+)?\s*")
CALLS_RULE = f"calls: {SECTION} {{calls}} {END_OF_SECTION}"
CALL_RULE = (
    f"call_{{n}}: {CALL} {{header}} INDEX {ARGUMENTS} arguments_{{n}} {END_OF_CALL}\n"
    "arguments_{n}: {arguments}"
)
FREE = "/(.|\\n)*/"
INDEX_RULE = "INDEX: /[0-9]{1,6}/"


class KimiReader(AnswerReader):
    """Parser for Kimi's format. A call's header is its id, unchanged like its arguments."""

    name = "kimi_k2"
    section, end_of_section = SECTION, END_OF_SECTION
    call_marks = (SECTION, END_OF_SECTION, CALL, ARGUMENTS, END_OF_CALL)

    with_known_ids = staticmethod(with_known_ids)

    @staticmethod
    def grammar(tools: Sequence[ToolSpec], once: bool) -> list[str]:
        """Return the grammar rules. Arguments without a strict schema are any text."""
        any_call = "(" + " | ".join(f"call_{n}" for n in range(len(tools))) + ")"
        rules = [CALLS_RULE.format(calls=any_call if once else f"{any_call}+"), INDEX_RULE]
        for n, tool in enumerate(tools):
            schema = json.dumps({"type": "object", **tool.parameters, **JSON_OPTIONS})
            header = json.dumps(f"functions.{tool.name}:")
            arguments = f"%json {schema}" if tool.strict else FREE
            rules.append(CALL_RULE.format(n=n, header=header, arguments=arguments))
        return rules

    def _in_section(self, piece: Piece) -> None:
        if piece == CALL:
            self._give_back(self._held)
            self._begin(self._in_header)
        elif piece == END_OF_SECTION:
            self._leave_section()
        else:
            self._held += str(piece)

    def _in_header(self, piece: Piece) -> None:
        if not isinstance(piece, Mark):
            self._held += piece
        elif piece == ARGUMENTS and (named := HEADER.fullmatch(self._held)):
            self._begin_call(named[1], self._held)
            self._begin(self._in_arguments)
        else:
            self._give_back(f"{CALL}{self._held}")
            self._begin(self._in_section)
            self._in_section(piece)

    def _in_arguments(self, piece: Piece) -> None:
        if piece in (END_OF_CALL, CALL, END_OF_SECTION):
            self._begin(self._behind_calls if self._one_call else self._in_section)
            if piece != END_OF_CALL:
                self._read(piece)
        else:
            self._add_arguments(str(piece))

    def _end(self) -> None:
        if self._read == self._in_header:
            self._held = f"{CALL}{self._held}"
        super()._end()
