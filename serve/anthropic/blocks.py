"""The content blocks of a conversation, and its turns."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from serve.anthropic.fields import CacheControl, KnownFields, Neutral, only

TEXT_ONLY = "send text"
NO_MORE = "send text and images"


class TextBlock(KnownFields):
    """Text; citations only describe it."""

    neutral: ClassVar[Neutral] = {"citations": (None, [])}

    type: Literal["text"]
    text: str
    cache_control: CacheControl = None


class ThinkingBlock(KnownFields):
    """The model's reasoning, as the client was told it; signature: see `thinking.py`."""

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
    """An image in base64. What kind it is, its bytes say."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str

    @property
    def as_url(self) -> str:
        """The image in a chat."""
        return f"data:{self.media_type};base64,{self.data}"


class UrlSource(KnownFields):
    """Where an image is."""

    type: Literal["url"]
    url: str

    @property
    def as_url(self) -> str:
        """The image in a chat."""
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
"""A string is one block of text."""
TextOnly = Annotated[TextBlock, only("content", ("text",), TEXT_ONLY)]
Texts = Annotated[list[TextOnly], AsBlocks]
Seen = Annotated[
    TextBlock | ImageBlock,
    Field(discriminator="type"),
    only("content of a tool_result", ("text", "image"), NO_MORE),
]


class ToolResultBlock(KnownFields):
    """What a call came to."""

    neutral: ClassVar[Neutral] = {"toolset_name": (None,)}

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[Seen], AsBlocks] = Field(default_factory=list)
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
    """What the user said, and what the calls before came to."""

    role: Literal["user"]
    content: Annotated[list[UserBlock], AsBlocks]


class AssistantTurn(KnownFields):
    """What the model answered."""

    role: Literal["assistant"]
    content: Annotated[list[AssistantBlock], AsBlocks]


Turn = Annotated[SystemTurn | UserTurn | AssistantTurn, Field(discriminator="role")]
