"""The parts of a chat answer: reasoning, content and calls of tools, whole or a piece of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_jax.sampling.structured_outputs import WHITESPACE

JSON_OPTIONS = {"x-guidance": {"whitespace_pattern": WHITESPACE}}
"""What llguidance is told of every schema."""


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


@dataclass(frozen=True)
class ToolSpec:
    """A function that a model may call. parameters: the JSON schema of its arguments; empty where
    any will do. strict: whether they must follow it."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = True
