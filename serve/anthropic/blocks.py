"""The content blocks of a conversation, and its turns."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from serve.openai.unsupported import KnownFields, Neutral, only

CacheControl = dict[str, Any] | None
"""Accepted without effect: every full page of a prompt is cached and shared anyway."""
TEXT_ONLY = "send text"
NO_MORE = "send text and images"


class TextBlock(KnownFields):
    """Text. Citations are ignored: they only describe it."""

    neutral: ClassVar[Neutral] = {"citations": (None, [])}

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None


class ThinkingBlock(KnownFields):
    """The model's reasoning as sent to the client. For `signature` see `thinking.py`."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(KnownFields):
    """A call that the model made."""

    neutral: ClassVar[Neutral] = {"caller": (None, {"type": "direct"}), "toolset_name": (None,)}

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None


def _as_blocks(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class DataSource(KnownFields):
    """An image in base64. Its format is detected from its bytes."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str

    @property
    def as_url(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(KnownFields):
    """The URL of an image."""

    type: Literal["url"]
    url: str

    @property
    def as_url(self) -> str:
        return self.url


class ImageBlock(KnownFields):
    """An image."""

    neutral: ClassVar[Neutral] = {"transformations": (None, {})}

    type: Literal["image"]
    source: Annotated[
        DataSource | UrlSource,
        Field(discriminator="type"),
        only("source of an image", ("base64", "url"), "no files are kept here: send base64"),
    ]
    cache_control: CacheControl = None


AsBlocks = BeforeValidator(_as_blocks, json_schema_input_type=str | list[dict[str, Any]])
"""Converts a string to one text block."""
TextOnly = Annotated[TextBlock, only("content", ("text",), TEXT_ONLY)]
Texts = Annotated[list[TextOnly], AsBlocks]
ResultBlock = Annotated[
    TextBlock | ImageBlock,
    Field(discriminator="type"),
    only("content of a tool_result", ("text", "image"), NO_MORE),
]


class ToolResultBlock(KnownFields):
    """The result of a call."""

    neutral: ClassVar[Neutral] = {"toolset_name": (None,)}

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[ResultBlock], AsBlocks] = Field(default_factory=list)
    is_error: bool | None = None
    cache_control: CacheControl = None


UserBlock = Annotated[
    TextBlock | ImageBlock | ToolResultBlock,
    Field(discriminator="type"),
    only("content of a user", ("text", "image", "tool_result"), NO_MORE),
]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | ToolUseBlock,
    Field(discriminator="type"),
    only("content of an assistant", ("text", "thinking", "tool_use"), "send what it answered"),
]


class SystemTurn(KnownFields):
    """An instruction within the conversation."""

    role: Literal["system"]
    content: Texts


class UserTurn(KnownFields):
    """A user message, with the results of preceding calls."""

    role: Literal["user"]
    content: Annotated[list[UserBlock], AsBlocks]


class AssistantTurn(KnownFields):
    """An answer of the model."""

    role: Literal["assistant"]
    content: Annotated[list[AssistantBlock], AsBlocks]


Turn = Annotated[SystemTurn | UserTurn | AssistantTurn, Field(discriminator="role")]
