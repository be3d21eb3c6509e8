"""Ask an OpenAI endpoint the questions of conversations, to get its model's own answers."""

import argparse
import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import openai
from openai.types.chat import ChatCompletionMessage

from serve.openai.history import REASONING
from serve.train.data import Message

RETRIES = 6
"""Retries of a request that found no server or a busy one, with growing delays."""
TIMEOUT_S = 3600.0
REFUSED = (400, 413, 422)
"""Statuses of requests that a server will never answer, for example if they are too long."""


class Answered(NamedTuple):
    """A conversation with new answers, of `tokens` tokens."""

    messages: list[Message]
    tokens: int


class Unanswered(NamedTuple):
    """The reason why a conversation is omitted."""

    reason: str


@dataclass(frozen=True)
class Asking:
    """A model at an endpoint; conversation i has seed `seed` + i, `sampling` is in all requests."""

    client: openai.AsyncOpenAI
    model: str
    sampling: dict[str, Any]
    seed: int

    @classmethod
    @asynccontextmanager
    async def of(cls, options: argparse.Namespace) -> AsyncIterator["Asking"]:
        """Connect as the flags describe; the default model is the first one served."""
        key = os.environ.get("OPENAI_API_KEY", "none")
        async with openai.AsyncOpenAI(
            base_url=options.url, api_key=key, max_retries=RETRIES, timeout=TIMEOUT_S
        ) as client:
            try:
                model = options.model or (await client.models.list()).data[0].id
            except openai.OpenAIError as error:
                raise OSError(f"--url {options.url}: {error}") from error
            sampling = {
                "temperature": options.temperature,
                "max_tokens": options.max_tokens or openai.omit,
                "extra_body": options.extra_body,
            }
            yield cls(client, model, sampling, options.seed)

    async def converse(
        self, index: int, messages: Sequence[Message], tools: Sequence[Message]
    ) -> Answered | Unanswered:
        """Return a conversation's questions, up to the last, with new answers.

        It ends before results of tool calls, which belong to another model's calls. Raises OSError
        if the endpoint fails.
        """
        said: list[Message] = []
        tokens = 0
        for message in _questions(messages):
            if message["role"] != "assistant":
                said.append(message)
                continue
            choice, size = await self._answer(index, said, tools)
            if isinstance(choice, Unanswered):
                return choice
            said.append(choice)
            tokens += size
        return Answered(said, tokens) if said else Unanswered("it asks nothing")

    async def _answer(
        self, index: int, history: list[Message], tools: Sequence[Message]
    ) -> tuple[Message | Unanswered, int]:
        shown = [{k: v for k, v in message.items() if k not in REASONING} for message in history]
        offered = {"tools": list(tools)} if tools else {}
        try:
            found = await self.client.chat.completions.create(
                model=self.model,
                messages=shown,  # type: ignore[arg-type]
                seed=self.seed + index,
                **offered,  # type: ignore[arg-type]
                **self.sampling,
            )
        except openai.APIStatusError as error:
            if error.status_code in REFUSED:
                return Unanswered(f"status {error.status_code}: {error.message}"), 0
            raise OSError(f"the endpoint answered {error.status_code}: {error.message}") from error
        except openai.OpenAIError as error:
            raise OSError(f"the endpoint does not answer: {error}") from error
        choice = found.choices[0]
        if choice.finish_reason == "length":
            return Unanswered("an answer was cut off by the limit of tokens"), 0
        return _message(choice.message), found.usage.completion_tokens if found.usage else 0


def _questions(messages: Sequence[Message]) -> list[Message]:
    """Return messages before the first tool result, up to an answer, adding one if needed."""
    found = list(itertools.takewhile(lambda message: message["role"] != "tool", messages))
    if found and found[-1]["role"] == "user":
        found.append({"role": "assistant"})
    while found and found[-1]["role"] != "assistant":
        found.pop()
    return found


def _message(message: ChatCompletionMessage) -> Message:
    """Return an answer in a conversation's form, with reasoning and calls."""
    given = json.loads(message.model_dump_json(exclude_none=True))
    reasoning = next((given[name] for name in REASONING if given.get(name)), None)
    calls = given.get("tool_calls")
    return {
        "role": "assistant",
        "content": given.get("content") or "",
        **({"reasoning_content": reasoning} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }
