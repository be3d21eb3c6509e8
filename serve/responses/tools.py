"""Request fields for tools, in the flat form of Responses."""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from serve.openai.tools import Function
from serve.openai.unsupported import RefusesUnsupported
from serve.responses.unsupported import TOOL, unsupported

logger = logging.getLogger(__name__)

CHOICES = ("function", "allowed_tools")
Absent = Literal[
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "image_generation",
]
"""Tools that OpenAI runs and coding agents offer in every request, whether they matter or not."""
KINDS = ("function", "namespace", *get_args(Absent))


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
        fields = self.model_dump(exclude={"type"}, exclude_none=True)
        function = {name: fields[name] for name in self.sent if name in fields}
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


class AbsentTool(BaseModel):
    """A tool that nobody runs here: the model is not told of it, so that it never calls it, and the
    answer's `tools` are without it."""

    type: Absent


AnyTool = FunctionTool | NamespaceTool | AbsentTool


class FunctionChoice(BaseModel):
    """A function, by its name."""

    type: Literal["function"]
    name: str

    def as_chat(self) -> dict[str, Any]:
        """The choice as chats have it."""
        return {"type": "function", "function": {"name": self.name}}


class AllowedTools(BaseModel):
    """Those of the tools that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice]

    def as_chat(self) -> dict[str, Any]:
        """The choice as chats have it."""
        allowed = {"mode": self.mode, "tools": [tool.as_chat() for tool in self.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}


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
    Annotated[AnyTool, Field(discriminator="type")],
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
    given: Iterable[AnyTool], choice: str | FunctionChoice | AllowedTools | None
) -> dict[str, Any]:
    """The fields of a chat about tools."""
    functions: list[FunctionTool] = []
    for tool in given:
        match tool:
            case NamespaceTool():
                functions += tool.functions()
            case FunctionTool():
                functions.append(tool)
            case AbsentTool():
                say_absent(tool.type)
    fields: dict[str, Any] = {"tools": [tool.as_chat() for tool in functions]} if functions else {}
    if choice is not None:
        fields["tool_choice"] = choice if isinstance(choice, str) else choice.as_chat()
    return fields


@cache
def say_absent(kind: Absent) -> None:
    """Once, as agents offer it in every request."""
    message = "/v1/responses: tools of type %s are left out: this server has none (said once)"
    logger.warning(message, kind)
