"""Request fields for tools, in the flat form of Responses."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from serve.asgi.errors import invalid_option
from serve.openai.tools import Function
from serve.openai.unsupported import RefusesUnsupported
from serve.responses.unsupported import TOOL, unsupported

CHOICES = ("function", "allowed_tools")
KINDS = ("function", "namespace")


class FunctionTool(RefusesUnsupported, Function):
    """A function the model may call."""

    model_config = ConfigDict(extra="ignore")
    neutral = TOOL
    within = "tools."

    type: Literal["function"]
    description: str | None = None
    strict: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        """The tool as chats have it."""
        function = self.model_dump(exclude_unset=True, exclude={"type"})
        function = {name: value for name, value in function.items() if value is not None}
        return {"type": "function", "function": function}


class NamespaceTool(BaseModel):
    """Functions that belong together. A model calls one of them by NAMESPACE.NAME."""

    type: Literal["namespace"]
    name: str = Field(pattern=r"^[\w-]{1,64}$")
    description: str | None = None
    tools: list[FunctionTool]

    def functions(self) -> list[FunctionTool]:
        """Its functions, by the names that a model knows."""
        return [
            tool.model_copy(update={"name": full_name(tool.name, self.name)}) for tool in self.tools
        ]


class FunctionChoice(BaseModel):
    """A function, by its name."""

    type: Literal["function"]
    name: str


class AllowedTools(BaseModel):
    """Those of the tools that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice]


def _known_kind(tool: Any) -> Any:
    kind = tool.get("type") if isinstance(tool, Mapping) else "function"
    if kind not in KINDS:
        message = f"tools: this server runs no tools of type {str(kind)[:100]!r}; give functions"
        raise unsupported("tools", message)
    return tool


def _known_choice(choice: Any) -> Any:
    kind = choice.get("type") if isinstance(choice, Mapping) else "function"
    if kind not in CHOICES:
        message = f"tool_choice: this release has no {str(kind)[:100]!r}; there are function and "
        raise unsupported("tool_choice", f"{message}allowed_tools")
    return choice


Tool = Annotated[
    Annotated[FunctionTool | NamespaceTool, Field(discriminator="type")],
    BeforeValidator(_known_kind),
]
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | FunctionChoice | AllowedTools,
    BeforeValidator(_known_choice),
]


def full_name(name: str, namespace: str | None) -> str:
    """By which a model calls a function."""
    return f"{namespace}.{name}" if namespace else name


def own_name(name: str, namespaces: Iterable[str]) -> dict[str, str]:
    """The fields `name` and, of a function in one of them, `namespace`."""
    namespace, _, rest = name.partition(".")
    return {"name": rest, "namespace": namespace} if namespace in namespaces else {"name": name}


def chat_tools(
    given: list[FunctionTool | NamespaceTool], choice: str | FunctionChoice | AllowedTools | None
) -> dict[str, Any]:
    """The fields of a chat about tools. A model sees only those of its tools that are allowed."""
    tools = [
        function
        for tool in given
        for function in (tool.functions() if isinstance(tool, NamespaceTool) else [tool])
    ]
    if isinstance(choice, AllowedTools):
        allowed = {tool.name for tool in choice.tools}
        if unknown := sorted(allowed - {tool.name for tool in tools}):
            raise invalid_option("tool_choice", f"tool_choice: there is no tool {unknown[0]!r}")
        tools = [tool for tool in tools if tool.name in allowed]
        choice = choice.mode
    fields: dict[str, Any] = {"tools": [tool.as_chat() for tool in tools]} if tools else {}
    if isinstance(choice, FunctionChoice):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        fields["tool_choice"] = choice
    return fields
