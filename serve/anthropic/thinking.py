"""Extended thinking: what a request asks for, and the signatures of thinking blocks."""

from base64 import b64decode, b64encode
from hashlib import sha256
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from serve.anthropic.blocks import ThinkingBlock
from serve.anthropic.fields import KnownFields, refused
from serve.asgi.errors import invalid_option

HOLDS_TEXT = "text-"
"""What a signature begins with that holds the reasoning itself."""


class ThinkingConfig(KnownFields):
    """The field `thinking`. display: whether answers show their reasoning, or signatures alone;
    keep: of Kimi's own endpoint, as in a chat."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"] | None = None
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None
    keep: Literal["all"] | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.type == "between_tools":
            raise refused("thinking of type 'between_tools'", "use adaptive")
        if self.budget_tokens is not None and self.type != "enabled":
            raise invalid_option("thinking", "thinking: budget_tokens needs type enabled")
        return self

    def as_chat(self) -> dict[str, Any]:
        """The field of a chat."""
        return {"type": self.type, "budget_tokens": self.budget_tokens, "keep": self.keep}


def signature(reasoning: str, *, shown: bool) -> str:
    """What goes with a thinking block, and comes back with it: of reasoning that is not shown it
    holds the text. Nobody is kept from writing one: reasoning is the client's to send."""
    text = reasoning.encode(errors="replace")
    return sha256(text).hexdigest() if shown else HOLDS_TEXT + b64encode(text).decode()


def reasoning_of(block: ThinkingBlock) -> str:
    """The reasoning that a block tells, or that its signature holds."""
    signed = block.signature or ""
    if block.thinking or not signed.startswith(HOLDS_TEXT):
        return block.thinking
    try:
        return b64decode(signed.removeprefix(HOLDS_TEXT)).decode()
    except ValueError:
        return ""
