"""Request bodies of the messages endpoints, and their translation to chats.

Unsupported and unknown fields are refused: ignoring an option would change the conversation.
"""

from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from serve.anthropic.blocks import AssistantTurn, CacheControl, Texts, Turn
from serve.anthropic.history import chat_messages
from serve.anthropic.thinking import ThinkingConfig
from serve.anthropic.tools import Tool, ToolChoice
from serve.asgi.body_models import FirstErrorOnly
from serve.asgi.errors import fields_renamed, invalid_option, unsupported_option
from serve.chat_format.thinking_switch import PRESERVE
from serve.openai.protocol import ChatCompletionRequest, SpeculativeOptions
from serve.openai.unsupported import KnownFields, Neutral

KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
"""The edit that clears no thinking, which chats call `preserve_thinking`."""
NEUTRAL: Neutral = {
    "billing_policy": (None,),
    "compaction": (None,),
    "container": (None,),
    "diagnostics": (None, {"previous_message_id": None}),
    "fallback_credit_token": (None,),
    "fallbacks": (None, []),
    "inference_geo": (None,),
    "mcp_servers": (None, []),
    "output_format": (None,),
    "service_tier": (None, "auto", "standard_only"),
    "speed": (None, "standard"),
    "thread": (None,),
}
"""Fields of the protocol and its betas, with the values that change nothing here."""
NAMES = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
}
"""Chat fields that have another name in messages."""


class ChatOfMessages(ChatCompletionRequest):
    """The chat of a messages body. Its answer may end with the context."""

    @property
    def ends_with_context(self) -> bool:
        return True

    @property
    def prompt_only(self) -> bool:
        """True if only the prompt is run, to cache it."""
        return self.max_tokens == 0


class OutputFormat(KnownFields):
    """The JSON schema of an answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(KnownFields):
    """The field `output_config`. The default effort is high. Without thinking it has no effect."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(KnownFields):
    """The field `metadata`, which is ignored."""

    user_id: str | None = None


class Conversation(KnownFields, FirstErrorOnly):
    """The body of POST /v1/messages/count_tokens: all fields that affect the prompt."""

    neutral: ClassVar[Neutral] = NEUTRAL

    model: str | None = None
    messages: list[Turn] = Field(min_length=1)
    system: Texts | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    context_management: dict[str, Any] | None = None
    cache_control: CacheControl = None

    @field_validator("context_management", mode="after")
    @classmethod
    def _refuse_other_edits(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        if given not in (None, {}, {"edits": []}, KEEP_ALL):
            raise unsupported_option("context_management", "leave it out, or keep all thinking")
        return given

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if isinstance(self.messages[-1], AssistantTurn):
            message = "messages: the last one must be the user's; an answer can't be begun for it"
            raise invalid_option("messages", message)
        _ = self.chat
        return self

    @cached_property
    def chat(self) -> ChatOfMessages:
        """The chat of this body. Raises ApiError for an invalid one."""
        with fields_renamed(NAMES):
            return ChatOfMessages.model_validate(self._chat_fields())

    @property
    def shows_thinking(self) -> bool:
        """True if answers include their reasoning."""
        return self.thinking is None or self.thinking.display != "omitted"

    def _chat_fields(self) -> dict[str, Any]:
        thinking, config = self.thinking, self.output_config or OutputConfig()
        fields: dict[str, Any] = {"model": self.model}
        fields["messages"] = chat_messages(self.system or (), self.messages)
        fields["tools"] = [tool.as_function() for tool in self.tools or ()] or None
        fields |= self.tool_choice.as_chat() if self.tool_choice else {}
        fields["thinking"] = thinking and thinking.as_chat()
        if self.context_management == KEEP_ALL:
            fields["chat_template_kwargs"] = {PRESERVE: True}
        if config.effort != "high" and (thinking is None or thinking.type != "disabled"):
            fields["reasoning_effort"] = config.effort
        if config.format is not None:
            schema = {"name": "answer", "schema": config.format.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields


class MessagesRequest(Conversation):
    """The body of POST /v1/messages. `seed` and `speculative` are extensions of this server."""

    max_tokens: int = Field(ge=0)
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    seed: int | None = None
    speculative: SpeculativeOptions | None = None

    def _chat_fields(self) -> dict[str, Any]:
        same = ("max_tokens", "temperature", "top_k", "top_p", "stream", "seed")
        given = {name: getattr(self, name) for name in same} | {"stop": self.stop_sequences}
        return super()._chat_fields() | given | {"speculative": self.speculative}
