"""Request fields for structured outputs, under OpenAI's, vLLM's and SGLang's names."""

from functools import cached_property
from typing import Any, Self

from pydantic import model_validator

from eagle3_jax.sampling.structured_outputs import KINDS, StructuredOutputs
from serve.asgi.errors import invalid_option
from serve.openai.unsupported import RefusesUnsupported

OTHER_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}
"""vLLM's older names and SGLang's, mapped to their names in `structured_outputs`."""
FORMATS = ("text", "json_object", "json_schema")


class StructuredFields(RefusesUnsupported):
    """The fields for structured outputs, of which a request may use one."""

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        _ = self.form
        return self

    @cached_property
    def form(self) -> StructuredOutputs | None:
        """The constraint on the answer, or None for free text."""
        forms = {name: {kind: getattr(self, name)} for name, kind in OTHER_NAMES.items()}
        forms = {name: form for name, form in forms.items() if None not in form.values()}
        if self.response_format is not None:
            forms["response_format"] = _from_response_format(self.response_format)
        if self.structured_outputs is not None:
            forms["structured_outputs"] = _from_structured_outputs(self.structured_outputs)
        forms = {name: form for name, form in forms.items() if form}
        if not forms:
            return None
        if len(forms) > 1:
            raise invalid_option([*forms][1], f"give only one of {', '.join(forms)}")
        ((name, form),) = forms.items()
        try:
            return StructuredOutputs(**form, asked_by=name)
        except ValueError as error:
            raise invalid_option(name, f"{error}") from error


def _from_response_format(given: dict[str, Any]) -> dict[str, Any]:
    kind = given.get("type")
    if kind not in FORMATS:
        message = f"response_format: type must be one of {', '.join(FORMATS)}; got {kind!r:.100}"
        raise invalid_option("response_format", message)
    if kind != "json_schema":
        return {"json_object": True} if kind == "json_object" else {}
    named = given.get("json_schema")
    if not isinstance(named, dict) or named.get("schema") is None:
        message = "response_format: json_schema must be an object with a field `schema`"
        raise invalid_option("response_format", message)
    return {"json": named["schema"]}


def _from_structured_outputs(given: dict[str, Any]) -> dict[str, Any]:
    form = {name: value for name, value in given.items() if value not in (None, False)}
    unknown = sorted(form.keys() - KINDS.keys())
    if unknown:
        message = f"structured_outputs: unknown {unknown}; there are {', '.join(KINDS)}"
        raise invalid_option("structured_outputs", message)
    return form
