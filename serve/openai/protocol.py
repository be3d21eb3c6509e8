"""Request bodies: OpenAI's fields, and vLLM's extensions under vLLM's names.

Every option may be null, which means the server's default. Unknown fields are ignored.
"""

from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)

from eagle3_jax.sampling.options import MAX_LOGPROBS
from eagle3_jax.sampling.params import REQUEST_OPTIONS
from serve.asgi.errors import invalid_option
from serve.openai.content import SEE, Content, read_content
from serve.openai.kv_transfer import KVTransferParams
from serve.openai.structured import StructuredFields
from serve.openai.thinking import ThinkingFields
from serve.openai.tools import ToolFields
from serve.openai.unsupported import (
    CHAT,
    COMPLETION,
    INSTEAD_OF_PARTS,
    MESSAGE,
    STREAM,
    RefusesUnsupported,
)

MAX_CHOICES = 128
MAX_STOP_CHARS = 4096
"""Length of all stop strings together: each is compared with the end of every answer."""
MAX_NAME_CHARS = 1024
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
"""Bounded because it is a dict key: larger numbers can be chosen to have equal hashes."""
PROMPTS = {name: CHAT[name] for name in ("chat_template", "continue_final_message", "documents")}
"""Chat options that would change the prompt."""
PLAIN_OPTIONS: dict[str, Any] = {
    name: (row.json | None, None) for name, row in REQUEST_OPTIONS.items() if row.json is not None
}
OptionFields = create_model("OptionFields", __base__=StructuredFields, **PLAIN_OPTIONS)
"""The request options whose type in bodies is the option's own."""


class StreamOptions(RefusesUnsupported):
    """Options of a streamed response besides its text."""

    neutral, within = STREAM, "stream_options."

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SpeculativeOptions(BaseModel):
    """Speculation options: the maximum number of drafts per round, 0 for none."""

    model_config = ConfigDict(extra="forbid")

    num_tokens: int | None = Field(None, ge=0)


class GenerationRequest(OptionFields):
    """Fields shared by completions and chat: options as they are, and those with another type."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    best_of: int | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[TokenId, float] | None = None
    bad_words: list[str] | None = None
    speculative: SpeculativeOptions | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_NAME_CHARS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    token_origins: bool | None = None
    kv_transfer_params: KVTransferParams | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.best_of is not None and self.best_of != self.num_choices:
            raise invalid_option("best_of", "best_of must equal n: choices are not ranked")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        if sum(map(len, stop)) > MAX_STOP_CHARS:
            message = f"stop may have at most {MAX_STOP_CHARS} characters, all strings together"
            raise invalid_option("stop", message)
        if self.stream_options is not None and not self.stream:
            raise invalid_option("stream_options", "stream_options needs stream = true")
        return self

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """True if a last chunk without choices carries the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """True if every chunk carries the usage so far."""
        options = self.stream_options
        return bool(options and options.include_usage and options.continuous_usage_stats)

    @property
    def skips_special(self) -> bool:
        """True if the answer's text omits special tokens."""
        return self.skip_special_tokens is not False

    @property
    def prompt_only(self) -> bool:
        """True if only the prompt is returned."""
        return False

    @property
    def repeats_prompt(self) -> bool:
        """True if the answer includes the prompt's ids or text."""
        return bool(self.return_token_ids)

    @property
    def token_limit(self) -> int | None:
        """Maximum number of generated tokens: an engine request generates at least one."""
        return 1 if self.prompt_only else self.max_tokens

    @property
    def ends_with_context(self) -> bool:
        """True if an answer may end with the context, before its limit."""
        return False

    @property
    def num_logprobs(self) -> int | None:
        """Number of top log-probabilities for each answer token; None for no log-probabilities."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Number of top log-probabilities for each prompt token; None for no log-probabilities."""
        return self.prompt_logprobs

    def sampling_options(self) -> dict[str, Any]:
        """Return the sampling options that this request sets, by their SamplingParams names."""
        given = {name: getattr(self, name) for name in PLAIN_OPTIONS}
        given["logprobs"], given["prompt_logprobs"] = self.num_logprobs, self.num_prompt_logprobs
        given["num_speculative_tokens"] = self.speculative and self.speculative.num_tokens
        lists = {name: tuple(v) for name, v in given.items() if isinstance(v, list)}
        return {name: v for name, v in (given | lists).items() if v is not None}


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    neutral = COMPLETION

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None

    @property
    def prompt_only(self) -> bool:
        """True for an echo without an answer, which clients use for its log-probabilities."""
        return bool(self.echo) and self.max_tokens == 0

    @property
    def repeats_prompt(self) -> bool:
        """True also for an echo, which is the prompt's text."""
        return bool(self.return_token_ids or self.echo)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The maximum of both fields: with an echo, `logprobs` covers the prompt too."""
        asked = self.prompt_logprobs, self.logprobs if self.echo else None
        return max((count for count in asked if count is not None), default=None)

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts. A list of ids is one prompt; other lists contain one per entry."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        given: Any = self.prompt
        return [given] if given and isinstance(given[0], int) else given


class ChatMessage(RefusesUnsupported):
    """One message. Fields that only the chat template knows are passed to it."""

    model_config = ConfigDict(extra="allow")
    neutral, instead, within = MESSAGE, INSTEAD_OF_PARTS, "messages."

    role: str
    content: Content | None = None

    @field_validator("role", mode="after")
    @classmethod
    def _read_role(cls, role: str) -> str:
        """Rename a developer message to system: templates know only the older name."""
        return "system" if role == "developer" else role

    @field_validator("content", mode="before")
    @classmethod
    def _read_content(cls, content: Any) -> Any:
        return read_content(content)

    @model_validator(mode="after")
    def _check_images(self) -> Self:
        if isinstance(self.content, list) and self.role not in SEE:
            message = f"messages of the roles {' and '.join(SEE)} may have images; one of the role "
            raise invalid_option("messages", f"messages: {message}{self.role!r:.100} has some")
        return self

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates read it, without image data."""
        if not isinstance(self.content, list):
            return self.model_dump(exclude_unset=True)
        parts = [part.for_template() for part in self.content]
        return self.model_dump(exclude_unset=True, exclude={"content"}) | {"content": parts}


class ChatCompletionRequest(GenerationRequest, ToolFields, ThinkingFields):
    """The body of POST /v1/chat/completions."""

    neutral = CHAT

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise invalid_option("top_logprobs", "top_logprobs needs logprobs = true")
        return self

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def token_limit(self) -> int | None:
        """Maximum number of generated tokens. The newer field name takes precedence."""
        newer = self.max_completion_tokens
        return super().token_limit if newer is None else newer

    def template_options(self) -> dict[str, Any]:
        """Return the variables of the chat template besides the messages."""
        options = dict(self.chat_template_kwargs or {})
        return options | {"tools": self.shown_tools} if self.shown_tools else options


class TokenizeRequest(RefusesUnsupported, ThinkingFields):
    """The body of POST /tokenize: a prompt or the messages of a chat."""

    neutral = PROMPTS

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise invalid_option("prompt", "give one of prompt and messages")
        return self

    def template_options(self) -> dict[str, Any]:
        """Return the variables of the chat template besides the messages."""
        options = {"add_generation_prompt": self.add_generation_prompt}
        tools = {"tools": self.tools} if self.tools else {}
        return options | (self.chat_template_kwargs or {}) | tools
