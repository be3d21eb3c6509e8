"""What an answer must look like, under the names vLLM gave these fields."""

import json as json_module
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

MAX_CONSTRAINT_BYTES = 256 * 1024
"""Longer ones are refused: nobody's grammar may take seconds to read."""
WHITESPACE = " "
"""What JSON may have between its parts, or nothing: with more a sampled answer may never end."""
KINDS = {
    "json": (str | bool | Mapping, "a JSON schema"),
    "regex": (str, "a regular expression"),
    "choice": (list | tuple, "a list of texts"),
    "grammar": (str, "a Lark or GBNF grammar"),
    "json_object": (bool, "true"),
}


@dataclass(frozen=True)
class StructuredOutputs:
    """The form of one answer: exactly one of the first five.

    json: a JSON schema, as an object or as text. regex: an expression the whole answer matches.
    choice: the answer is one of these texts. grammar: Lark or GBNF, as llguidance reads it.
    json_object: any JSON object. begins_after: an id behind which the form begins, once; whatever
    comes before it is free, but for EOS. between: two ids; only pieces of the answer have the form,
    each from the first id, wherever the model chooses it, to the second, and all else is free.
    Raises ValueError for none or several of the five, values of another type, an empty choice, and
    more than 256 KiB.
    """

    json: str | bool | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool = False
    begins_after: int | None = None
    between: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        given = [name for name in given if name != "json_object" or self.json_object is not False]
        if len(given) != 1:
            raise ValueError(f"structured_outputs must be one of {', '.join(KINDS)}; got {given}")
        name, value = given[0], getattr(self, given[0])
        kind, meaning = KINDS[name]
        texts = value if name == "choice" and isinstance(value, kind) else ["text"]
        if not isinstance(value, kind) or not texts or not all(_is_text(t) for t in texts):
            raise ValueError(f"structured_outputs {name} must be {meaning}; got {value!r:.200}")
        if name == "json" and not isinstance(value, str):
            object.__setattr__(self, "json", _dump(value))
        if name == "choice":
            object.__setattr__(self, "choice", tuple(value))
        _check_size(name, getattr(self, name))

    @property
    def everywhere(self) -> "StructuredOutputs":
        """The same form from an answer's first token to its last."""
        return replace(self, begins_after=None, between=None)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _check_size(name: str, value: object) -> None:
    size = len(str(value).encode(errors="replace"))
    if size > MAX_CONSTRAINT_BYTES:
        raise ValueError(
            f"structured_outputs {name} may have {MAX_CONSTRAINT_BYTES} bytes; got {size}"
        )


def _dump(schema: bool | Mapping[str, Any]) -> str:
    try:
        return json_module.dumps(schema, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"structured_outputs json is not a JSON schema: {error}") from error
