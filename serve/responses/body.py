"""The response as one object: what was asked, how it ended, and what came out."""

import json
import time
from typing import Any, Literal

from convert.text.json_pieces import JsonText
from eagle3_jax.sampling.params import SamplingParams
from serve.asgi.errors import ApiError, invalid_request
from serve.engine.choices import TokenCounts
from serve.responses.protocol import ResponseRequest
from serve.responses.tools import AbsentTool

Ended = Literal["completed", "incomplete", "failed"]
ENDED: dict[str, Ended] = {"stop": "completed", "length": "incomplete"}
"""By the engine's finish reason; else the server gave the request up."""
MOST_REPEATED = 4 * 2**20
"""Bytes of what was asked in every answer: not all of it need be in a prompt."""
GIVEN_UP = "the server gave the request up"


def asked(body: ResponseRequest) -> dict[str, JsonText]:
    """The fields that say what was asked, as the JSON text that every event repeats; raises 400
    where they are more than an answer repeats."""
    form = body.text and body.text.format
    fields: dict[str, Any] = {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "text": {"format": form or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": _choice(body),
        "tools": [
            tool.model_dump() for tool in body.tools or () if not isinstance(tool, AbsentTool)
        ],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }
    texts = {name: JsonText(json.dumps(value)) for name, value in fields.items()}
    if (size := sum(map(len, texts.values()))) > MOST_REPEATED:
        message = f"instructions, tools and text may have {MOST_REPEATED} bytes; got {size}"
        raise invalid_request(message, param="tools")
    return texts


def sampled(sampling: SamplingParams) -> dict[str, Any]:
    """The same for what was left open, as it was chosen."""
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }


def ended(finish_reason: str) -> dict[str, Any]:
    """The fields that say how it ended."""
    status = ENDED.get(finish_reason, "failed")
    if status == "failed":
        return failed(ApiError(500, GIVEN_UP, code="generation_failed"))
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {"status": status, "completed_at": int(time.time()), "incomplete_details": cut}


def failed(error: ApiError) -> dict[str, Any]:
    """The same for one that ended with an error, under one of the codes that OpenAI has for it."""
    code = "server_error" if error.status >= 500 else "invalid_prompt"
    return {"status": "failed", "error": {"code": code, "message": error.message}}


def usage(counts: TokenCounts, reasoning_tokens: int) -> dict[str, Any]:
    """Token counts under the names of Responses. Reasoning is part of the output; the cache keeps
    every prompt, and no request writes to it by itself."""
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {
            "cached_tokens": counts.cached,
            "cache_write_tokens": 0,
            **counts.cached_details,
        },
        "output_tokens": counts.completion,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": counts.prompt + counts.completion,
    }


def _choice(body: ResponseRequest) -> Any:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return choice.model_dump()
