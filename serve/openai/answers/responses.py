"""Response bodies, in OpenAI's form.

`seed`, `spec`, `stop_reason`, `metrics`, `token_ids`, `token_origins`, `prompt_token_ids` and
`prompt_logprobs` are extensions; the last five appear only when asked for, which is why bodies are
written with `exclude_unset`.
"""

from typing import Any, Literal

from pydantic import BaseModel, SerializeAsAny

from serve.chat_format.parts import AnswerParts, CallPart
from serve.engine.choices import TokenCounts
from serve.openai.answers.logprob_forms import ChatLogprobs, CompletionLogprobs, LogprobsById
from serve.openai.answers.spec_metrics import ResponseMetrics
from serve.openai.answers.token_origins import TokenOrigin


class PromptTokensDetails(BaseModel):
    """How the prompts' tokens came about; cached ones were not run again. cached_tokens_details:
    SGLang's name; where they were found, if not all on the devices."""

    cached_tokens: int
    cached_tokens_details: dict[str, int] | None = None


class Usage(BaseModel):
    """Token counts of one HTTP request: every prompt once, every choice's tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage(counts: TokenCounts) -> Usage:
    """The counts as clients read them."""
    return Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.completion,
        total_tokens=counts.prompt + counts.completion,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=counts.cached, **counts.cached_details
        ),
    )


class SpecMetrics(BaseModel):
    """What speculation did for one choice; rounds are counted before trimming."""

    rounds: int
    accepted: int
    accept_length: float | None


class GenerationChoice(BaseModel):
    """What completion and chat choices share."""

    index: int
    logprobs: CompletionLogprobs | ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    seed: int | None = None
    spec: SpecMetrics | None = None
    token_ids: list[int] | None = None
    token_origins: list[TokenOrigin] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[LogprobsById | None] | None = None


class CompletionChoice(GenerationChoice):
    """A completion, whole or one streamed piece of it."""

    text: str


class FunctionCall(BaseModel):
    """What is called, and its arguments as JSON text."""

    name: str | None = None
    arguments: str


class ToolCall(BaseModel):
    """One call of a tool, or what a streamed piece adds to it: only the first says what it is."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class AssistantMessage(BaseModel):
    """A chat answer, or one streamed piece of it (the role comes with the first)."""

    role: Literal["assistant"] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


def whole_message(parts: AnswerParts) -> AssistantMessage:
    """A whole answer; content is null where there is only something else."""
    others = _all_but_content(parts)
    content = parts.content or (None if others else "")
    return AssistantMessage(role="assistant", content=content, **others)


def delta(parts: AnswerParts, first: bool) -> AssistantMessage:
    """A streamed piece; the role comes with the first."""
    fields = _all_but_content(parts)
    if parts.content or not fields:
        fields["content"] = parts.content
    return AssistantMessage(**({"role": "assistant"} if first else {}), **fields)


def _all_but_content(parts: AnswerParts) -> dict[str, Any]:
    """vLLM calls reasoning `reasoning`, SGLang `reasoning_content`."""
    fields: dict[str, Any] = {}
    if parts.reasoning:
        fields |= {"reasoning": parts.reasoning, "reasoning_content": parts.reasoning}
    if parts.calls:
        fields["tool_calls"] = [_tool_call(index, call) for index, call in parts.calls.items()]
    return fields


def _tool_call(index: int, call: CallPart) -> ToolCall:
    """Only the first piece of a call has id, type and name; fields not set are not sent."""
    if call.id is None:
        return ToolCall(index=index, function=FunctionCall(arguments=call.arguments))
    function = FunctionCall(name=call.name, arguments=call.arguments)
    return ToolCall(index=index, id=call.id, type="function", function=function)


class ChatChoice(GenerationChoice):
    """A whole chat answer."""

    message: AssistantMessage


class ChatChunkChoice(GenerationChoice):
    """A streamed piece of a chat answer."""

    delta: AssistantMessage


class GenerationResponse(BaseModel):
    """Every generated body, whole or a chunk, around its choices."""

    id: str
    object: str
    created: int
    model: str
    choices: list[SerializeAsAny[GenerationChoice]]
    usage: Usage | None = None
    metrics: ResponseMetrics | None = None
    synthetic_acceptance_length: float | None = None
    seed: int | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[LogprobsById | None] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class ModelCard(BaseModel):
    """One entry of GET /v1/models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "eagle3-jax"
    root: str
    max_model_len: int
    input_modalities: list[Literal["text", "image"]]


class ModelList(BaseModel):
    """GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
