"""Bodies of which only the first error is of interest."""

from typing import Any

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema


def _give_up_early(schema: Any) -> None:
    """Marks every list within the schema."""
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
    """A model whose lists are given up at their first wrong item.

    pydantic collects an error for each: a body of a million wrong items would take the server's
    time and memory for errors that nobody reads.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _give_up_early(schema)
        return schema
