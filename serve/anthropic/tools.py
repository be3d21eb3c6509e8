"""The fields `tools` and `tool_choice`."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from serve.anthropic.blocks import CacheControl
from serve.asgi.body_models import RawPreservingModel
from serve.asgi.errors import invalid_option
from serve.openai.unsupported import KnownFields, Neutral, only

IN_CHATS = {
    "name": "name",
    "description": "description",
    "input_schema": "parameters",
    "strict": "strict",
}
"""Fields of a tool, with their names in a chat's function."""
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
"""Kinds of tool_choice, with their names in a chat."""


class CustomTool(KnownFields, RawPreservingModel):
    """A tool that the client runs. `input_schema` is the JSON schema of its arguments.

    Arguments are always streamed as they are generated, whatever `eager_input_streaming` says.
    """

    neutral: ClassVar[Neutral] = {
        "allowed_callers": (None, ["direct"]),
        "defer_loading": (None, False),
        "input_examples": (None, []),
    }

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: CacheControl = None
    eager_input_streaming: bool | None = None

    def as_function(self) -> dict[str, Any]:
        given = {name: value for name, value in self.sent.items() if value is not None}
        function = {IN_CHATS[name]: given[name] for name in given if name in IN_CHATS}
        return {"type": "function", "function": function}


Tool = Annotated[
    CustomTool, only("tools", ("custom",), "no tools are run or known here: describe one of yours")
]


class ToolChoice(KnownFields):
    """Says that the model must, may or must not call a tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if (self.name is None) == (self.type == "tool"):
            raise invalid_option("tool_choice", "tool_choice: a name goes with type tool alone")
        return self

    def as_chat(self) -> dict[str, Any]:
        named = {"type": "function", "function": {"name": self.name}}
        choice = named if self.type == "tool" else CHOICES[self.type]
        parallel = False if self.disable_parallel_tool_use else None
        return {"tool_choice": choice, "parallel_tool_calls": parallel}
