"""The body of POST /v1/responses: OpenAI's fields and the further options of chats."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from eagle3_jax.sampling.options import MAX_LOGPROBS
from serve.asgi.errors import invalid_option
from serve.openai.protocol import MAX_NAME_CHARS, GenerationRequest
from serve.openai.unsupported import RefusesUnsupported
from serve.responses.items import InputItem
from serve.responses.tools import NamespaceTool, Tool, ToolChoice
from serve.responses.unsupported import INSTEAD_HERE, REASONING, RESPONSE

LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""Values of `include`. All after the first two have no effect: they concern refused tools, except
for message images, which are always included."""
Text = Annotated[str, Field(max_length=MAX_NAME_CHARS)]


def _listed(given: Any) -> Any:
    """Convert a text to a user message."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


Input = Annotated[
    list[InputItem], BeforeValidator(_listed, json_schema_input_type=str | list[InputItem])
]


class ReasoningOptions(RefusesUnsupported):
    """The field `reasoning`."""

    neutral, instead, within = REASONING, INSTEAD_HERE, "reasoning."

    effort: str | None = None


class TextOptions(BaseModel):
    """The field `text`: the format of the answer.

    `verbosity`, which some clients always send, has no effect: the models have no such switch, and
    every answer reports `medium`.
    """

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    def response_format(self) -> dict[str, Any] | None:
        """Return the chat's `response_format`, which the chat validates."""
        if self.format is None or self.format.get("type") != "json_schema":
            return self.format
        schema = {name: value for name, value in self.format.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}


class ResponseRequest(GenerationRequest):
    """The body of POST /v1/responses.

    `user`, `safety_identifier`, `prompt_cache_key` and `max_tool_calls` (of hosted tools) have no
    effect and are only returned.
    """

    neutral, instead = RESPONSE, INSTEAD_HERE

    input: Input | None = None
    instructions: str | None = None
    previous_response_id: Text | None = None
    store: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Included] | None = Field(None, max_length=64)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    truncation: Literal["auto", "disabled"] | None = None
    metadata: (
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None
    ) = Field(None, max_length=16)
    chat_template_kwargs: dict[str, Any] | None = None
    thinking: Any = None
    thinking_token_budget: Any = None
    """The chat validates this field and `thinking`."""
    prompt_cache_key: Text | None = None
    safety_identifier: Text | None = None
    user: Text | None = None

    @model_validator(mode="after")
    def _check_response(self) -> Self:
        if not self.input and self.previous_response_id is None:
            raise invalid_option("input", "input must be a text or a list of items")
        if self.top_logprobs and not self.includes_logprobs:
            message = f'top_logprobs needs "{LOGPROBS}" in include'
            raise invalid_option("top_logprobs", message)
        return self

    @property
    def num_logprobs(self) -> int | None:
        """The field `top_logprobs` if `include` asks for log-probabilities, else None."""
        return (self.top_logprobs or 0) if self.includes_logprobs else None

    @property
    def includes_logprobs(self) -> bool:
        """True if the text's tokens come with their log-probabilities."""
        return LOGPROBS in (self.include or ())

    @property
    def namespaces(self) -> list[str]:
        return [tool.name for tool in self.tools or () if isinstance(tool, NamespaceTool)]

    @property
    def seals_reasoning(self) -> bool:
        """True if reasoning items have an `encrypted_content`."""
        return ENCRYPTED in (self.include or ())
