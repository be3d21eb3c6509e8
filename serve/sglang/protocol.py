"""The body of POST /generate, in SGLang's format.

Other fields than those below are ignored, except those that would change the answer.
"""

from functools import cached_property
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from eagle3_jax.sampling.options import MAX_LOGPROBS
from serve.asgi.body_models import MOST_ENTRIES
from serve.asgi.errors import invalid_option
from serve.openai.protocol import MAX_NAME_CHARS, GenerationRequest
from serve.openai.unsupported import RefusesUnsupported

NEUTRAL: dict[str, tuple[object, ...]] = {
    "image_data": (None, []),
    "video_data": (None, []),
    "audio_data": (None, []),
    "input_embeds": (None,),
    "lora_path": (None,),
    "priority": (None, 0),
    "extra_key": (None,),
    "session_params": (None,),
    "token_ids_logprob": (None, []),
    "custom_logit_processor": (None,),
    "return_hidden_states": (None, False),
    "return_routed_experts": (None, False),
}
"""Options that this release does not support, with the values that change nothing."""
NEUTRAL_SAMPLING: dict[str, tuple[object, ...]] = {
    "stop_regex": (None, [], ""),
    "structural_tag": (None,),
}


EACH = ("rid", "cache_salt", "return_logprob", "top_logprobs_num", "logprob_start_len")
"""Fields that may differ for each prompt, besides its options."""
Salt = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]


class GenerateSampling(GenerationRequest):
    """`sampling_params`: the options of completions, four of them under SGLang's names."""

    neutral = NEUTRAL_SAMPLING

    max_tokens: int | None = Field(None, alias="max_new_tokens")
    min_tokens: int | None = Field(None, alias="min_new_tokens")
    seed: int | None = Field(None, alias="sampling_seed", ge=-(2**63), lt=2**63)
    include_stop_str_in_output: bool | None = Field(None, alias="no_stop_trim")
    logprobs: int | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class PromptOptions(NamedTuple):
    """The parameters of one prompt. Its log-probabilities begin at `logprob_start` (None: none)."""

    prompt: str | list[int]
    sampling: GenerateSampling
    rid: str | None
    logprob_start: int | None


def _listed(value: Any) -> Any:
    return [{}] if value is None else value if isinstance(value, list) else [value]


class GenerateRequest(RefusesUnsupported):
    """One prompt or a batch. A value that is not a list applies to all prompts of a batch."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    neutral = NEUTRAL

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: Annotated[list[GenerateSampling], BeforeValidator(_listed)] = Field(
        default_factory=lambda: [GenerateSampling.model_validate({})]
    )
    rid: Name | list[Name] | None = None
    cache_salt: Salt | list[Salt] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: (
        Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]
        | list[Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]]
        | None
    ) = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None

    @model_validator(mode="after")
    def _check_prompts(self) -> Self:
        if (self.text is None) == (self.input_ids is None):
            raise invalid_option("text", "give one of text and input_ids")
        if [] in (self.text, self.input_ids):
            raise invalid_option("text", "text: expected a prompt, got an empty list")
        if self._batched and len(self._prompts) > MOST_ENTRIES["text"]:
            message = (
                f"there may be at most {MOST_ENTRIES['text']} prompts; got {len(self._prompts)}"
            )
            raise invalid_option("input_ids", message)
        _ = self.prompt_options
        return self

    @property
    def single(self) -> bool:
        """True if the answer is one object: for a single prompt, not in a list, with one choice."""
        return not self._batched and self.prompt_options[0].sampling.num_choices == 1

    @property
    def _batched(self) -> bool:
        prompts = self._prompts
        return isinstance(prompts, list) and not (prompts and isinstance(prompts[0], int))

    @property
    def _prompts(self) -> Any:
        return self.text if self.input_ids is None else self.input_ids

    @cached_property
    def prompt_options(self) -> list[PromptOptions]:
        prompts: list[str | list[int]] = self._prompts if self._batched else [self._prompts]
        count = len(prompts)
        samplings = self.sampling_params * (count if len(self.sampling_params) == 1 else 1)
        samplings = _each("sampling_params", samplings, count)
        others = zip(*(_each(name, getattr(self, name), count) for name in EACH), strict=True)
        found: list[PromptOptions] = []
        for prompt, sampling, values in zip(prompts, samplings, others, strict=True):
            rid, salt, wanted, top, start = values
            top = (top or 0) if wanted else None
            start = None if top is None or start is None or start < 0 else start
            counts = {"logprobs": top, "prompt_logprobs": None if start is None else top}
            sampling = sampling.model_copy(update=counts | {"cache_salt": salt})
            found.append(PromptOptions(prompt, sampling, rid, start))
        return found


def _each(name: str, value: Any, count: int) -> list[Any]:
    """Return the values of all prompts. A list must have `count` entries."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise invalid_option(
            name, f"{name} must have {count} entries, one per prompt; got {len(value)}"
        )
    return value
