"""MiniMax-M2's answers: reasoning`</think>`, content, and a section of calls in an XML form.

The section's ends are special tokens, its tags are ordinary text:

    <minimax:tool_call>
    <invoke name="NAME">
    <parameter name="KEY">VALUE</parameter>
    </invoke>
    </minimax:tool_call>
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from serve.chat_format.json_values import allowed_types, json_text
from serve.chat_format.marked_text import Mark, Piece
from serve.chat_format.parts import JSON_OPTIONS, ToolSpec
from serve.chat_format.reader import AnswerReader, escaped

SECTION = Mark("<minimax:tool_call>")
END_OF_SECTION = Mark("</minimax:tool_call>")
INVOKE = re.compile(r"""<invoke name=(["']?)([\w.-]+)\1>""")
IN_INVOKE = re.compile(r"""<parameter name=(["']?)([^"'<>]+)\1>|</invoke>""")
END_OF_VALUE = "</parameter>"
CALLS_RULE = 'calls: /\\n{{0,3}}/ <minimax:tool_call> "\\n" {calls} </minimax:tool_call>'
CALL_RULE = 'call_{n}: {head} {parameters} "</invoke>\\n"'
PARAMETER_RULE = '{rule}: {head} {value} "\\n"'
TEXT_RULE = f"text[suffix={json.dumps(END_OF_VALUE)}]: /(.|\\n)*/"
ANY_RULE = 'any: "<parameter name=\\"" /[\\w.-]+/ "\\">" text "\\n"'
END_RULE = json.dumps(END_OF_VALUE)


class MiniMaxReader(AnswerReader):
    """A call's arguments become JSON as its parameters come: strings as they grow, other values
    once they are whole. A value that is no JSON of a type its schema allows is a string."""

    name = "minimax_m2"
    section = SECTION
    call_marks = (SECTION, END_OF_SECTION)
    blanks = "\n"
    always_reasons = True
    arguments_as_objects = True

    @staticmethod
    def grammar(tools: Sequence[ToolSpec], once: bool) -> list[str]:
        """Parameters come in the order of the schema, each at most once; what is to be no string is
        JSON."""
        any_call = "(" + " | ".join(f"call_{n}" for n in range(len(tools))) + ")"
        rules = [CALLS_RULE.format(calls=any_call if once else f"{any_call}+"), TEXT_RULE, ANY_RULE]
        for n, tool in enumerate(tools):
            rules += _call(n, tool)
        return rules

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
        # A tag is complete only with a ">"; the growing text is not searched before.
        while (self._scan == self._grow_string or ">" in self._held) and self._scan():
            pass

    def _seek_invoke(self) -> bool:
        """Steps return whether there may be more to read."""
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
        """Steps over a tag. Text in front of it is no part of a call."""
        self._give_back(self._held[: tag.start()])
        self._held = self._held[tag.end() :]

    def _close_call(self) -> None:
        """Ends the call under way, though the model may not have closed what it opened."""
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
        """A value that was cut stays as it is."""
        if self._read == self._in_section and self._scan in (self._grow_string, self._await_value):
            whole = self._scan == self._await_value
            self._add_arguments(self._held if whole else escaped(self._held))
            self._held = ""
        super()._end()


def _begun_end(text: str) -> int:
    """Characters at the end of a text with which the end of a value may have begun."""
    sizes = range(min(len(text), len(END_OF_VALUE) - 1), 0, -1)
    return next((size for size in sizes if END_OF_VALUE.startswith(text[-size:])), 0)


def _call(n: int, tool: ToolSpec) -> Iterator[str]:
    schema = tool.parameters
    head = json.dumps(f'<invoke name="{tool.name}">\n')
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        yield CALL_RULE.format(n=n, head=head, parameters="any*")
        return
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    names = [
        f"parameter_{n}_{i}" + ("" if p in required else "?") for i, p in enumerate(properties)
    ]
    yield CALL_RULE.format(n=n, head=head, parameters=" ".join(names))
    for i, (name, value) in enumerate(properties.items()):
        rule = f"parameter_{n}_{i}"
        head = json.dumps(f'<parameter name="{name}">', ensure_ascii=False)
        if (texts := _choices(value)) is not None:
            yield f"{rule}_value: {texts}"
            yield PARAMETER_RULE.format(rule=rule, head=head, value=f"{rule}_value {END_RULE}")
        elif "string" in allowed_types(value, schema):
            yield PARAMETER_RULE.format(rule=rule, head=head, value="text")
        else:
            inside = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            yield f"{rule}_value: %json {json.dumps({**inside, **value, **JSON_OPTIONS})}"
            yield PARAMETER_RULE.format(rule=rule, head=head, value=f"{rule}_value {END_RULE}")


def _choices(schema: Any) -> str | None:
    """The strings a schema lists, if it lists nothing else."""
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(text, str) and text for text in listed):
        return None
    return " | ".join(json.dumps(text, ensure_ascii=False) for text in listed)
