"""Fields of a response: the request's parameters, the final status and the usage."""

import json
import time
from typing import Any, Literal

from convert.text.json_pieces import JsonText
from serve.asgi.errors import ApiError, invalid_request
from serve.engine.choices import TokenCounts
from serve.responses.protocol import ResponseRequest
from serve.responses.tools import AbsentTool

Ended = Literal["completed", "incomplete", "failed"]
ENDED: dict[str, Ended] = {"stop": "completed", "length": "incomplete"}
"""Status by the engine's finish reason. For any other reason, the server aborted the request."""
MOST_REPEATED = 4 * 2**20
"""Limit in bytes of the parameters in every answer: not all of them need be in the prompt."""
ABORTED = "the server aborted the request"


def repeated_fields(body: ResponseRequest) -> dict[str, JsonText]:
    """Return the parameters that every event repeats, as JSON text. 400 above MOST_REPEATED."""
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


def ended(finish_reason: str) -> dict[str, Any]:
    status = ENDED.get(finish_reason, "failed")
    if status == "failed":
        return failed(ApiError(500, ABORTED, code="generation_failed"))
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {"status": status, "completed_at": int(time.time()), "incomplete_details": cut}


def failed(error: ApiError) -> dict[str, Any]:
    """Return the fields of a failed response, with one of OpenAI's error codes."""
    code = "server_error" if error.status >= 500 else "invalid_prompt"
    return {"status": "failed", "error": {"code": code, "message": error.message}}


def usage(counts: TokenCounts, reasoning_tokens: int) -> dict[str, Any]:
    """Return the token counts. Output includes reasoning; caching is automatic (0 cache writes)."""
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
