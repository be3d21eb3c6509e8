"""Request fields for tool calling: what the model may call, and what it must."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serve.asgi.errors import invalid_option
from serve.chat_format.parts import ToolSpec


class Function(BaseModel):
    """A function the model may call; parameters is the JSON schema of its arguments."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[\w.-]{1,128}$")
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """An entry of `tools`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


class FunctionName(BaseModel):
    """The function of a named choice."""

    name: str


class NamedChoice(BaseModel):
    """A tool_choice that names its function."""

    type: Literal["function"]
    function: FunctionName


class ToolFields(BaseModel):
    """The fields of a chat request about tools."""

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        choice = self.tool_choice or "auto"
        if not self.tools and choice not in ("auto", "none"):
            raise invalid_option("tool_choice", "tool_choice needs tools to choose from")
        if isinstance(choice, NamedChoice) and not self.callable:
            message = f"tool_choice: there is no tool {choice.function.name!r}"
            raise invalid_option("tool_choice", message)
        return self

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools as the chat template reads them; none when none may be called."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        return [tool.model_dump(exclude_unset=True) for tool in tools]

    @property
    def offered(self) -> list[ToolSpec]:
        """The functions the model knows of."""
        functions = [tool.function for tool in self.tools or ()]
        functions = [] if self.tool_choice == "none" else functions
        return [ToolSpec(function.name, function.parameters or {}) for function in functions]

    @property
    def callable(self) -> list[ToolSpec]:
        """Those of them it may call: all, or the one the request names."""
        if not isinstance(self.tool_choice, NamedChoice):
            return self.offered
        return [f for f in self.offered if f.name == self.tool_choice.function.name][:1]

    @property
    def names_tool(self) -> bool:
        """Whether the request says which function is to be called."""
        return isinstance(self.tool_choice, NamedChoice)

    @property
    def must_call(self) -> bool:
        """Whether the answer must be calls, not text."""
        return self.names_tool or self.tool_choice == "required"
