"""Request fields for tools, in the flat format of Responses."""

import logging
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from serve.openai.tools import Function
from serve.openai.unsupported import RefusesUnsupported, only
from serve.responses.unsupported import TOOL
from serve.telemetry.logs import warn_once

logger = logging.getLogger(__name__)

CHOICES = ("function", "allowed_tools")
Absent = Literal[
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "image_generation",
]
"""Hosted tools of OpenAI, which coding agents offer in every request, even if not needed."""
ABSENT = "/v1/responses: tools of type %s are left out: this server has none (said once)"
KINDS = ("function", "namespace", *get_args(Absent))


class FunctionTool(RefusesUnsupported, Function):
    """A function that the model may call."""

    model_config = ConfigDict(extra="ignore")
    neutral = TOOL
    within = "tools."

    type: Literal["function"]
    description: str | None = None
    strict: bool | None = None

    def as_chat(self) -> dict[str, Any]:
        fields = self.model_dump(exclude={"type"}, exclude_none=True)
        function = {name: fields[name] for name in self.sent if name in fields}
        return {"type": "function", "function": function}


class NamespaceTool(BaseModel):
    """A group of functions. The model calls one as NAMESPACE.NAME."""

    type: Literal["namespace"]
    name: str = Field(pattern=r"^[\w-]{1,64}$")
    description: str | None = None
    tools: list[FunctionTool]

    def functions(self) -> list[FunctionTool]:
        """Return its functions under the names that the model uses."""
        return [
            tool.model_copy(update={"name": full_name(tool.name, self.name)}) for tool in self.tools
        ]


class AbsentTool(BaseModel):
    """A hosted tool that this server lacks. The prompt and the answer's `tools` omit it."""

    type: Absent


AnyTool = FunctionTool | NamespaceTool | AbsentTool


class FunctionChoice(BaseModel):
    """The choice of one function by name."""

    type: Literal["function"]
    name: str

    def as_chat(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name}}


class AllowedFunctions(BaseModel):
    """The tools that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice]

    def as_chat(self) -> dict[str, Any]:
        allowed = {"mode": self.mode, "tools": [tool.as_chat() for tool in self.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}


Tool = Annotated[
    Annotated[AnyTool, Field(discriminator="type")],
    only("a tool", KINDS, "this server runs none: give functions", param="tools"),
]
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | FunctionChoice | AllowedFunctions,
    only("a tool_choice", CHOICES, f"there are {', '.join(CHOICES)}", param="tool_choice"),
]


def full_name(name: str, namespace: str | None) -> str:
    """Return the name by which a model calls a function."""
    return f"{namespace}.{name}" if namespace else name


def own_name(name: str, namespaces: Iterable[str]) -> dict[str, str]:
    """Return the fields `name` and, if the name has a known namespace, `namespace`."""
    namespace, _, rest = name.partition(".")
    return {"name": rest, "namespace": namespace} if namespace in namespaces else {"name": name}


def chat_tools(
    given: Iterable[AnyTool], choice: str | FunctionChoice | AllowedFunctions | None
) -> dict[str, Any]:
    functions: list[FunctionTool] = []
    for tool in given:
        match tool:
            case NamespaceTool():
                functions += tool.functions()
            case FunctionTool():
                functions.append(tool)
            case AbsentTool():
                warn_once(logger, ABSENT, tool.type)
    fields: dict[str, Any] = {"tools": [tool.as_chat() for tool in functions]} if functions else {}
    if choice is not None:
        fields["tool_choice"] = choice if isinstance(choice, str) else choice.as_chat()
    return fields
