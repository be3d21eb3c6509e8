"""Base classes of request models: bounded lists, and parts that stay as the client sent them."""

from typing import Any, Self

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    model_validator,
)
from pydantic_core import CoreSchema

from eagle3_jax.sampling.options import MAX_BAD_WORDS, MAX_REQUEST_STOP_IDS
from serve.asgi.errors import invalid_option

MOST_ENTRIES = {
    "messages": 2**14,
    "input": 2**14,
    "tools": 2**10,
    "stop": 64,
    "stop_sequences": 64,
    "stop_token_ids": MAX_REQUEST_STOP_IDS,
    "bad_words": MAX_BAD_WORDS,
    "text": 2**14,
    "sampling_params": 2**14,
}
"""Maximum number of entries, for fields whose entries cost more than those of others."""


def _give_up_early(schema: Any) -> None:
    """Make every list in the schema stop at its first invalid item."""
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for name, part in schema.items():
            if name != "metadata":
                _give_up_early(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _give_up_early(part)


class FirstErrorOnly(BaseModel):
    """Model whose lists stop at their first invalid item and have at most MOST_ENTRIES entries.

    The entries are counted before any is validated. pydantic collects an error for each invalid
    item: a body with a million of them would cost the server's time and memory for errors nobody
    reads.
    """

    @model_validator(mode="before")
    @classmethod
    def _refuse_too_many(cls, body: Any) -> Any:
        for name, most in MOST_ENTRIES.items() if isinstance(body, dict) else ():
            given = body.get(name)
            if isinstance(given, list | dict) and len(given) > most:
                message = f"{name} may have at most {most} entries; got {len(given)}"
                raise invalid_option(name, message)
        return body

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _give_up_early(schema)
        return schema


class RawPreservingModel(BaseModel):
    """Model that keeps the object it was parsed from.

    A dump orders keys by field declaration, so that the prompt would depend on the Python class.
    """

    _sent: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        part = read(given)
        if isinstance(given, dict):
            part._sent = given
        return part

    @property
    def sent(self) -> dict[str, Any]:
        """The parsed object, with its keys in the client's order."""
        return self._sent
