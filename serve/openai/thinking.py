"""Request fields that switch thinking on or off and limit its length.

OpenAI's `reasoning_effort`, the `thinking` of Anthropic's and Kimi's own endpoints, the `reasoning`
of OpenAI's responses and OpenRouter, and vLLM's `thinking_token_budget`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from eagle3_jax.sampling.structured_outputs import ThinkingBudget
from serve.asgi.errors import invalid_option, invalid_request
from serve.chat_format.format import ChatReading
from serve.chat_format.reader import END_OF_THINK, THINK
from serve.chat_format.reasoning import SpecialTokens, id_of

NO_LIMIT = -1
NO_END = f"thinking_token_budget: the tokenizer has no {END_OF_THINK}, behind which answers begin"
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Tokens = Annotated[int, Field(ge=0, lt=2**31)]


class Thinking(BaseModel):
    """The object `thinking`. Without a `type` the checkpoint decides whether to think."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["enabled", "disabled", "adaptive"] | None = None
    budget_tokens: Tokens | None = None
    keep: Literal["all"] | None = None

    @field_validator("keep", mode="before")
    @classmethod
    def _refuse_others(cls, keep: Any) -> Any:
        if keep not in (None, "all"):
            message = f'thinking.keep must be "all" or null; got {keep!r:.100}'
            raise invalid_option("thinking", message)
        return keep


class Reasoning(BaseModel):
    """The object `reasoning`."""

    model_config = ConfigDict(extra="forbid")

    effort: Effort | None = None
    max_tokens: Tokens | None = None
    enabled: bool | None = None
    exclude: bool | None = None

    @property
    def thinks(self) -> bool | None:
        """The switch for thinking, apart from `effort`. `max_tokens` implies thinking."""
        return self.max_tokens is not None or None if self.enabled is None else self.enabled


class ThinkingFields(BaseModel):
    """The fields of a chat request about thinking, which must not contradict each other.

    `chat_template_kwargs` are variables of the template, which may switch thinking too.
    """

    reasoning_effort: Effort | None = None
    thinking: Thinking | bool | None = None
    reasoning: Reasoning | None = None
    thinking_token_budget: int | None = Field(None, ge=NO_LIMIT, lt=2**31)
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_thinking(self) -> Self:
        _ = self.thinks, self.effort, self.thinking_tokens
        return self

    @property
    def effort(self) -> Effort | None:
        inner = self.reasoning and self.reasoning.effort
        return agreed({"reasoning_effort": self.reasoning_effort, "reasoning.effort": inner})

    @property
    def thinks(self) -> bool | None:
        """True or False if the request switches thinking on or off, else None."""
        asked = {
            "reasoning_effort": self.effort and self.effort != "none",
            "thinking": _is_on(self.thinking),
            "reasoning": self.reasoning and self.reasoning.thinks,
        }
        return agreed(asked)

    @property
    def keeps(self) -> bool | None:
        """True if the prompt must keep the reasoning of every earlier turn; None if unset."""
        return (isinstance(self.thinking, Thinking) and self.thinking.keep == "all") or None

    @property
    def thinking_tokens(self) -> int | None:
        """Maximum number of thinking tokens; NO_LIMIT for any, None for the server's default."""
        inner = self.thinking.budget_tokens if isinstance(self.thinking, Thinking) else None
        return agreed(
            {
                "thinking_token_budget": self.thinking_token_budget,
                "thinking.budget_tokens": inner,
                "reasoning.max_tokens": self.reasoning and self.reasoning.max_tokens,
            }
        )

    @property
    def includes_reasoning(self) -> bool:
        excluded = self.reasoning is not None and bool(self.reasoning.exclude)
        return self.include_reasoning is not False and not excluded


def _is_on(thinking: Thinking | bool | None) -> bool | None:
    if isinstance(thinking, Thinking):
        return None if thinking.type is None else thinking.type != "disabled"
    return thinking


def thinking_budget(
    tokens: int | None, inside: bool, reading: ChatReading, tokenizer: SpecialTokens
) -> ThinkingBudget | None:
    """Return the thinking budget of an answer. `inside`: the prompt has begun the thinking.

    Raises 400 if the tokenizer has no end-of-thinking token.
    """
    if tokens is None or tokens == NO_LIMIT:
        return None
    end, begins = id_of(END_OF_THINK, tokenizer), id_of(THINK, tokenizer)
    if end is None:
        raise invalid_request(NO_END, param="thinking_token_budget", code="unsupported_option")
    calls = [token for token, mark in reading.marks.items() if mark == reading.reader.section]
    return ThinkingBudget(tokens, (end, *calls), None if inside else begins)


def agreed(asked: dict[str, Any]) -> Any:
    """Return the value on which all given fields agree. Raises an error if they disagree."""
    given = {name: value for name, value in asked.items() if value is not None}
    if len(set(given.values())) > 1:
        said = ", ".join(f"{name} {value!r}" for name, value in given.items())
        raise invalid_option([*given][-1], f"these contradict each other: {said}")
    return next(iter(given.values()), None)
