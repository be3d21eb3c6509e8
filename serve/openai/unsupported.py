"""Request options that this release does not support, with their values that change nothing.

Ignoring an option that would change the answer is worse than refusing it. Any other value is an
error that names the option. Unknown names are ignored: routers and clients add their own fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from serve.asgi.body_models import FirstErrorOnly
from serve.asgi.errors import unsupported_option

SHARED: dict[str, tuple[object, ...]] = {
    "length_penalty": (None, 1),
    "use_beam_search": (None, False),
    "logits_processors": (None, []),
    "return_tokens_as_token_ids": (None, False),
    "truncate_prompt_tokens": (None,),
    "priority": (None, 0),
    "repetition_detection": (None,),
    "vllm_xargs": (None, {}),
}
COMPLETION = SHARED | {
    "suffix": (None, ""),
    "prompt_embeds": (None,),
    "reasoning_effort": (None,),
    "thinking": (None,),
    "reasoning": (None,),
    "thinking_token_budget": (None,),
}
CHAT = SHARED | {
    "echo": (None, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "separate_reasoning": (None, True),
    "stream_reasoning": (None, True),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
    "chat_template": (None,),
    "documents": (None, []),
    "media_io_kwargs": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "moderation": (None,),
    "prompt_cache_options": (None, {}, {"mode": "implicit"}),
    "prompt_cache_retention": (None, "in_memory"),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "verbosity": (None, "medium"),
}
MESSAGE = {
    "audio": (None,),
    "function_call": (None,),
    "refusal": (None,),
    "partial": (None, False),
    "prefix": (None, False),
}
"""Fields of messages. Moonshot's `partial` and DeepSeek's `prefix` continue an answer."""
STREAM = {"include_obfuscation": (None, False)}
CONTINUED = "render the prompt with a part of the answer and send it to /v1/completions"
INSTEAD_OF_PARTS = {"partial": CONTINUED, "prefix": CONTINUED, "function_call": "use tool_calls"}
IN_CHAT = "/v1/chat/completions has it: a template says where reasoning begins"
INSTEAD = {
    "use_beam_search": "answers are sampled, n of them",
    "suffix": "the models are not trained to fill in the middle",
    "extra_key": "cache_salt keeps the prefixes of requests apart",
    "priority": "requests start in the order they came; leave it out or send 0",
    "thinking_token_budget": IN_CHAT,
    "reasoning_effort": IN_CHAT,
    "thinking": IN_CHAT,
    "reasoning": IN_CHAT,
    "repetition_detection": "max_tokens and stop end an answer early",
    "truncate_prompt_tokens": "/tokenize the prompt and send the ids that are wanted",
    "return_tokens_as_token_ids": "return_token_ids gives the ids",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "continue_final_message": CONTINUED,
    "chat_template": "the server's own is its flag --chat-template",
    "prompt_cache_options": "prefixes are cached without being asked to",
    "prompt_cache_retention": "prefixes stay as long as there is room",
    "store": "/v1/responses keeps answers",
    "verbosity": "say in the prompt how long answers should be",
    "stop_regex": "stop takes plain strings",
}
"""Alternatives to an option, if there is a better one than leaving it out."""


Neutral = Mapping[str, tuple[object, ...]]
"""Fields that are not implemented, with the values that change nothing."""


class RefusesUnsupported(FirstErrorOnly):
    """Body that accepts the options in `neutral` only with the values listed there."""

    neutral: ClassVar[Neutral] = {}
    instead: ClassVar[Mapping[str, str]] = INSTEAD
    within: ClassVar[str] = ""
    """Prefix of the names in errors: the field that contains the object, and a dot."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        for name, allowed in cls.neutral.items() if isinstance(body, Mapping) else ():
            if name in body and body[name] not in allowed:
                instead = cls.instead.get(name, "leave it out")
                raise unsupported_option(cls.within + name, instead)
        return body


class KnownFields(BaseModel):
    """A body or a part of one, whose unknown fields are refused, unless their value is neutral."""

    model_config = ConfigDict(allow_inf_nan=False)
    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, given: Any) -> Any:
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name in given if isinstance(given, dict) else ():
            if name not in known and given[name] not in cls.neutral.get(name, ()):
                # JSON may have lone surrogates, which pydantic's messages can't.
                raise unsupported_option(name[:200].encode(errors="replace").decode())
        return given


def only(
    where: str, kinds: Sequence[str], instead: str, *, param: str | None = None
) -> BeforeValidator:
    """Return a validator that refuses an object of another `type`, by its name."""

    def check(part: Any) -> Any:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind not in kinds:
            raise unsupported_option(f"{where} of type {kind[:200]!r}", instead, param=param)
        return part

    return BeforeValidator(check)
