"""The parts of a chat answer, and of the grammars that constrain its tool calls."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_jax.sampling.structured_outputs import WHITESPACE

JSON_OPTIONS = {"x-guidance": {"whitespace_pattern": WHITESPACE}}
"""Options for llguidance in every schema."""
SLASH = re.compile(r"(\\.)|/", re.DOTALL)
"""An unescaped slash, which ends a regular expression; group 1 is an escaped character."""


@dataclass
class CallPart:
    """A tool call or an increment of one. Only the first increment has id and name."""

    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass
class AnswerParts:
    """An answer or an increment of one. `calls` is keyed by the index of the call."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, CallPart] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolSpec:
    """A function, and the JSON schema ({}: any) that the arguments of a strict one must match."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = True


def regex_body(pattern: str) -> str:
    """Return a regular expression as the body of a Lark /literal/, with its newlines escaped."""

    def written(found: re.Match[str]) -> str:
        pair = found[1] or "\\/"
        return "\n" if pair == "\\\n" else pair

    return SLASH.sub(written, pattern).replace("\n", "\\n")
