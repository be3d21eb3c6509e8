"""Request fields for tool calling: the tools that the model may or must call."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from serve.asgi.body_models import RawPreservingModel
from serve.asgi.errors import invalid_option
from serve.chat_format.parts import ToolSpec


class Function(RawPreservingModel):
    """A function and the JSON schema of its arguments, which those of a strict one always match."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[\w.-]{1,128}$")
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RawPreservingModel):
    """An entry of `tools`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function

    @field_validator("type", mode="before")
    @classmethod
    def _refuse_other_kinds(cls, kind: Any) -> Any:
        if kind != "function":
            message = f"tools of type {kind!r:.100} are not implemented; functions are"
            raise invalid_option("tools", message)
        return kind


class FunctionName(BaseModel):
    """The function of a named choice."""

    name: str


class NamedChoice(BaseModel):
    """A tool_choice that names its function."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(BaseModel):
    """Some of the tools. Mode "required" means that one of them must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(min_length=1)


class AllowedChoice(BaseModel):
    """A tool_choice that restricts calls to some functions."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of(choice: Any) -> Any:
    return choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", "mode")


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedChoice, Tag("function")]
    | Annotated[AllowedChoice, Tag("allowed_tools")],
    Discriminator(_kind_of),
]


class ToolFields(BaseModel):
    """The fields of a chat request about tools."""

    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _refuse_other_kinds(cls, choice: Any) -> Any:
        kind = _kind_of(choice)
        if kind not in ("mode", "function", "allowed_tools"):
            message = f"tool_choice of type {kind!r:.100} is not implemented; function and "
            raise invalid_option("tool_choice", f"{message}allowed_tools are")
        return choice

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        choice = self.tool_choice or "auto"
        if not self.tools and choice not in ("auto", "none"):
            raise invalid_option("tool_choice", "tool_choice needs tools to choose from")
        missing = sorted((self._chosen or set()) - {tool.name for tool in self.offered})
        if missing:
            raise invalid_option("tool_choice", f"tool_choice: there is no tool {missing[0]!r}")
        return self

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools as the chat template reads them; empty if none may be called."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        return [tool.sent for tool in tools]

    @property
    def offered(self) -> list[ToolSpec]:
        """The functions in the prompt."""
        functions = [tool.function for tool in self.tools or ()]
        functions = [] if self.tool_choice == "none" else functions
        return [ToolSpec(f.name, f.parameters or {}, f.strict is True) for f in functions]

    @property
    def callable(self) -> list[ToolSpec]:
        """The functions that may be called: all, or those that the request names, each once."""
        chosen = self._chosen
        named = {tool.name: tool for tool in reversed(self.offered)}
        return self.offered if chosen is None else [named[name] for name in sorted(chosen)]

    @property
    def _chosen(self) -> set[str] | None:
        match self.tool_choice:
            case NamedChoice(function=function):
                return {function.name}
            case AllowedChoice(allowed_tools=allowed):
                return {choice.function.name for choice in allowed.tools}
            case _:
                return None

    @property
    def names_tool(self) -> bool:
        return isinstance(self.tool_choice, NamedChoice)

    @property
    def must_call(self) -> bool:
        choice = self.tool_choice
        mode = choice.allowed_tools.mode if isinstance(choice, AllowedChoice) else choice
        return self.names_tool or mode == "required"

    @property
    def constrains_calls(self) -> bool:
        """True if a call that the model may choose to make must be constrained."""
        limited = isinstance(self.tool_choice, AllowedChoice)
        return limited or any(tool.strict for tool in self.offered)
