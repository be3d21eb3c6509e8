"""What an answer must look like, under the names vLLM gave these fields."""

import json as json_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

from eagle3_jax.sampling.vacuous_keywords import drop_vacuous_keywords

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


class FormPart(NamedTuple):
    """A part of a form, as errors name it.

    Attributes:
        field: the field of the request that holds the part.
        name: what an error calls it.
        alone: makes the form of this part alone.
        schema: the JSON schema that the client wrote, if the part is one.
    """

    field: str
    name: str
    alone: Callable[[], "StructuredOutputs"]
    schema: Any = None


@dataclass(frozen=True)
class StructuredOutputs:
    """The form of one answer: exactly one of the first five.

    json: a JSON schema, as an object or as text. regex: an expression the whole answer matches.
    choice: the answer is one of these texts. grammar: Lark or GBNF, as llguidance reads it.
    json_object: any JSON object. begins_after: an id behind which the form begins, once; whatever
    comes before it is free, but for EOS. between: two ids; only pieces of the answer have the form,
    each from the first id, wherever the model chooses it, to the second, and all else is free.
    asked_by: the field of a request that asks for the form. parts: what a form of several tools is
    made of. Errors name both; forms that differ in nothing else are equal.
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
    asked_by: str = field(default="structured_outputs", compare=False)
    parts: tuple[FormPart, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        given = [name for name in given if name != "json_object" or self.json_object is not False]
        if len(given) != 1:
            raise self._error(f"must be one of {', '.join(KINDS)}; got {given}")
        name, value = given[0], getattr(self, given[0])
        kind, meaning = KINDS[name]
        texts = value if name == "choice" and isinstance(value, kind) else ["text"]
        if not isinstance(value, kind) or not texts or not all(_is_text(t) for t in texts):
            raise self._error(f"{name} must be {meaning}; got {value!r:.200}")
        if name == "json" and not isinstance(value, str):
            object.__setattr__(self, "json", self._dump(value))
        if name == "choice":
            object.__setattr__(self, "choice", tuple(value))
        size = len(str(getattr(self, name)).encode(errors="replace"))
        if size > MAX_CONSTRAINT_BYTES:
            raise self._error(f"{name} may have {MAX_CONSTRAINT_BYTES} bytes; got {size}")

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema without the keywords that bar nothing; None for the other kinds. Raises
        ValueError for a text that holds no schema."""
        if self.json is None:
            return {"type": "object"} if self.json_object else None
        try:
            schema = json_module.loads(str(self.json), parse_constant=_refuse_constant)
            schema = drop_vacuous_keywords(schema)
        except (ValueError, RecursionError) as error:
            raise self._error(f"json is not a JSON schema: {error}") from error
        if not isinstance(schema, Mapping | bool):
            raise self._error(f"json must be an object or a boolean; got {schema!r:.50}")
        # In an object, so that options can stand beside it.
        return schema if isinstance(schema, Mapping) else {} if schema else {"enum": []}

    @property
    def everywhere(self) -> "StructuredOutputs":
        """The same form from an answer's first token to its last."""
        return replace(self, begins_after=None, between=None)

    def _dump(self, schema: bool | Mapping[str, Any]) -> str:
        try:
            return json_module.dumps(schema, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._error(f"json is not a JSON schema: {error}") from error

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"{self.asked_by}: {reason}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
