"""Extended thinking: its request field, and the signatures of thinking blocks."""

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from serve.anthropic.blocks import ThinkingBlock
from serve.asgi.errors import invalid_option, unsupported_option
from serve.openai.unsupported import KnownFields

HOLDS_TEXT = "text-"
"""Prefix of a signature that contains the reasoning itself."""


class ThinkingConfig(KnownFields):
    """The field `thinking`. With `display` "omitted", answers show signatures alone.

    `keep` comes from Kimi's own endpoint, as in a chat.
    """

    type: Literal["enabled", "disabled", "adaptive", "between_tools"] | None = None
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None
    keep: Literal["all"] | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.type == "between_tools":
            raise unsupported_option("thinking of type 'between_tools'", "use adaptive")
        if self.budget_tokens is not None and self.type != "enabled":
            raise invalid_option("thinking", "thinking: budget_tokens needs type enabled")
        return self

    def as_chat(self) -> dict[str, Any]:
        return {"type": self.type, "budget_tokens": self.budget_tokens, "keep": self.keep}


def signature(reasoning: str, *, shown: bool) -> str:
    """Return the signature of a thinking block. If `shown` is false, it contains the reasoning.

    Clients send it back with the block. They may send any reasoning: it is not authenticated.
    """
    text = reasoning.encode(errors="replace")
    return sha256(text).hexdigest() if shown else HOLDS_TEXT + b64encode(text).decode()


def reasoning_of(block: ThinkingBlock) -> str:
    """Return the reasoning in a block, or in its signature."""
    signed = block.signature or ""
    if block.thinking or not signed.startswith(HOLDS_TEXT):
        return block.thinking
    try:
        return b64decode(signed.removeprefix(HOLDS_TEXT)).decode()
    except ValueError:
        return ""
