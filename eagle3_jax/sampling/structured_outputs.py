"""Constraints on the form of an answer, under vLLM's field names, and the thinking budget."""

import json as json_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

from eagle3_jax.sampling.json_schema import drop_vacuous_keywords

MAX_CONSTRAINT_BYTES = 256 * 1024
"""Longer constraints are refused, because reading a grammar could take seconds."""
WHITESPACE = " "
"""Whitespace that JSON may have between its parts, or none: with more an answer may never end."""
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
        field: Field of the request that holds the part.
        name: Name of the part in errors.
        alone: Makes the form of this part alone.
        schema: JSON schema that the client wrote, if the part is one.
    """

    field: str
    name: str
    alone: Callable[[], "StructuredOutputs"]
    schema: Any = None


@dataclass(frozen=True)
class StructuredOutputs:
    """The form of one answer: exactly one of the first five fields.

    Attributes:
        json: A JSON schema, as an object or as text.
        regex: An expression that the whole answer matches.
        choice: The answer is one of these texts.
        grammar: Lark or GBNF, as llguidance reads it.
        json_object: Any JSON object.
        begins_after: Id after which the form begins, once; text before is free, except for EOS.
        between: Begin and end ids. Only text from a begin id, wherever the model chooses it, to the
            end id has the form; all other text is free.
        asked_by, parts: Request field, and parts of a form of several tools, for errors only.

    Raises ValueError for none or several of the five, wrong types, an empty choice, or > 256 KiB.
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
        """JSON schema without keywords that bar nothing; None for other kinds of forms.

        Raises ValueError for a text that is not a schema.
        """
        if self.json is None:
            return {"type": "object"} if self.json_object else None
        try:
            schema = json_module.loads(str(self.json), parse_constant=_refuse_constant)
            schema = drop_vacuous_keywords(schema)
        except (ValueError, RecursionError) as error:
            raise self._error(f"json is not a JSON schema: {error}") from error
        if not isinstance(schema, Mapping | bool):
            raise self._error(f"json must be an object or a boolean; got {schema!r:.50}")
        # A mapping, so that options can be added to it.
        return schema if isinstance(schema, Mapping) else {} if schema else {"enum": []}

    @property
    def everywhere(self) -> "StructuredOutputs":
        """The same form, from an answer's first token to its last."""
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


@dataclass(frozen=True)
class ThinkingBudget:
    """Maximum number of thinking tokens; after them the end of thinking is forced.

    `ends` are the ids that end thinking; the first one is the forced id. `begins` is the id that
    begins it if it is the answer's first token, or None if the prompt has begun it. Raises
    ValueError for a negative number and for empty `ends`.
    """

    tokens: int
    ends: tuple[int, ...]
    begins: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"a thinking budget must be 0 tokens or more; got {self.tokens}")
        if not self.ends:
            raise ValueError("a thinking budget needs an id that ends the thinking")
