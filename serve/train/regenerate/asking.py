"""Conversations at an OpenAI endpoint: each question again, each answer its model's own."""

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

from serve.demo.corpus.conversation import Message
from serve.openai.prompts.history import REASONING

RETRIES = 6
"""Of a request that found no server or a busy one; the client waits longer each time."""
TIMEOUT_S = 3600.0
REFUSED = (400, 413, 422)
"""What a server says of a request that it will never answer: too long, say."""


class Answered(NamedTuple):
    """A conversation with new answers, of so many tokens."""

    messages: list[Message]
    tokens: int


class Unanswered(NamedTuple):
    """Why a conversation is left out."""

    reason: str


@dataclass(frozen=True)
class Asking:
    """A model behind an endpoint. sampling: fields of every request; seed: of conversation 0, the
    next one has the next."""

    client: openai.AsyncOpenAI
    model: str
    sampling: dict[str, Any]
    seed: int

    @classmethod
    @asynccontextmanager
    async def of(cls, options: argparse.Namespace) -> AsyncIterator["Asking"]:
        """What the flags say; the model is the first that is served where they name none."""
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
        """The questions of a conversation with new answers, its last question too. It ends before
        results of calls: those in it answer calls that another model made.

        Raises OSError where the endpoint fails.
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
    """Those up to the first result of a call, of which the last is an answer: one is to be had
    where a question is the last."""
    found = list(itertools.takewhile(lambda message: message["role"] != "tool", messages))
    if found and found[-1]["role"] == "user":
        found.append({"role": "assistant"})
    while found and found[-1]["role"] != "assistant":
        found.pop()
    return found


def _message(message: ChatCompletionMessage) -> Message:
    """An answer as it stands in a conversation, reasoning and calls included."""
    given = json.loads(message.model_dump_json(exclude_none=True))
    reasoning = next((given[name] for name in REASONING if given.get(name)), None)
    calls = given.get("tool_calls")
    return {
        "role": "assistant",
        "content": given.get("content") or "",
        **({"reasoning_content": reasoning} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }
