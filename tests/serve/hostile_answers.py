"""Bodies that ask for large answers (hostile_bodies.py posts them)."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

TALK = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "name": "f", "description": "d" * 1500}
EACH = {"max_tokens": 8, "ignore_eos": True, "n": 128}
"""128 choices of 8 tokens: an engine generates them for 16 clients within seconds."""
TOLD = {"return_token_ids": True, "token_origins": True}
NATIVE = {"n": 16, "max_new_tokens": 64, "ignore_eos": True}
LONG = "hello world " * 15


def native(**more: Any) -> dict[str, Any]:
    logprobs = {"return_logprob": True, "top_logprobs_num": 20, "logprob_start_len": 0}
    return {"text": LONG, "sampling_params": NATIVE, **logprobs, **more}


ANSWERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "a chat's log-probabilities": (
        "/v1/chat/completions",
        {"messages": TALK, "logprobs": True, "top_logprobs": 20, **EACH},
    ),
    "a stream of a chat's log-probabilities": (
        "/v1/chat/completions",
        {"messages": TALK, "logprobs": True, "top_logprobs": 20, "stream": True, **EACH},
    ),
    "a completion's log-probabilities": (
        "/v1/completions",
        {"prompt": LONG, "echo": True, "logprobs": 20, **EACH, **TOLD, "n": 32},
    ),
    "prompts' log-probabilities": (
        "/v1/completions",
        {"prompt": [LONG] * 64, "seed": 1, "max_tokens": 1, "prompt_logprobs": 20, **TOLD},
    ),
    "native log-probabilities": ("/generate", native()),
    "a stream of native log-probabilities": ("/generate", native(stream=True)),
    "native texts of tokens": ("/generate", native(return_text_in_logprobs=True)),
    "a stream that repeats tools": (
        "/v1/responses",
        {"input": "hi", "tools": [TOOL] * 1000, "stream": True, "tool_choice": "none"}
        | {"max_output_tokens": 4},
    ),
    "log-probabilities of a response": (
        "/v1/responses",
        {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 20}
        | {"max_output_tokens": 150, "stream": True},
    ),
}


def _written(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


BODIES: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    name: (path, partial(_written, body)) for name, (path, body) in ANSWERS.items()
}
"""What it is: where it goes, and how it is made."""
