"""What an answer must look like, under the names vLLM gave these fields."""

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

MAX_CONSTRAINT_BYTES = 256 * 1024
"""Longer ones are refused: nobody's grammar may take seconds to read."""


@dataclass(frozen=True)
class StructuredOutputs:
    """The form of one answer: exactly one of these.

    json: a JSON schema, as an object or as text. regex: an expression the whole answer matches.
    choice: the answer is one of these texts. grammar: Lark or GBNF, as llguidance reads it.
    json_object: any JSON object. Raises ValueError for none or several of them, an empty choice,
    what isn't JSON, and more than 256 KiB.
    """

    json: str | bool | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        if self.json is not None and not isinstance(self.json, str):
            object.__setattr__(self, "json", _dump(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", tuple(self.choice))
        given = [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(f.name for f in fields(self))
            raise ValueError(f"structured_outputs must be one of {names}; got {given}")
        if self.choice is not None and not (self.choice and all(self.choice)):
            raise ValueError(f"choice must be texts that are not empty; got {list(self.choice)}")
        size = len(str(getattr(self, given[0])).encode(errors="replace"))
        if size > MAX_CONSTRAINT_BYTES:
            raise ValueError(
                f"structured_outputs {given[0]} may have {MAX_CONSTRAINT_BYTES} bytes; got {size}"
            )


def _dump(schema: bool | Mapping[str, Any]) -> str:
    try:
        return json_module.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"structured_outputs json is not a JSON schema: {error}") from error
