"""An OpenAI server under test: streamed answers with their times."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_tools.bench.load.http_client import SHOWN, Address, Response, exchange, request
from eagle3_tools.bench.load.lengths import Endpoint
from eagle3_tools.bench.load.prompts import Prompt

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
SYNTHETIC = "synthetic_acceptance_length"


@dataclass
class Outcome:
    """Result of a request, times in seconds.

    `ttft` is the time to the first event with a token, `gaps` are between such events (an event may
    carry several tokens), `latency` is to the last one. Token counts are the server's, or None.
    `synthetic` is the server's synthetic accept length, if any.
    """

    ttft: float = 0.0
    gaps: list[float] = field(default_factory=list)
    latency: float = 0.0
    pieces: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    synthetic: float | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """The answer, reasoning included."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class Server:
    """A server, and the model and endpoint to use."""

    address: Address
    model: str
    endpoint: Endpoint = "completions"

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """Build a streamed, greedy request for exactly `prompt.max_tokens` tokens."""
        asked: dict[str, Any] = {"prompt": prompt.text}
        if self.endpoint == "chat":
            asked = {"messages": [{"role": "user", "content": prompt.content}]}
        return asked | {
            "model": self.model,
            "max_tokens": prompt.max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def answer(self, prompt: Prompt) -> Outcome:
        """Send a prompt and time the events. Failures are returned, not raised."""
        body, outcome = self.body(prompt), Outcome()
        try:
            async with exchange(self.address, "POST", PATHS[self.endpoint], body) as response:
                await _follow(response, outcome)
        except (OSError, EOFError, ValueError) as error:
            outcome.error = f"{type(error).__name__}: {error}"[:SHOWN]
        return outcome


async def _follow(response: Response, outcome: Outcome) -> None:
    last, ended = response.begun, False
    if response.status != 200:
        body = (await response.read()).decode(errors="replace")
        raise OSError(f"status {response.status}: {body}")
    async for line in response.lines():
        if line == b"data: [DONE]":
            ended = True
        elif line.startswith(b"data:"):
            event = json.loads(line[5:])
            if _take(event, outcome):
                now = time.perf_counter()
                if outcome.ttft:
                    outcome.gaps.append(now - last)
                else:
                    outcome.ttft = now - last
                last = now
    outcome.latency = last - response.begun
    if not outcome.ttft:
        raise OSError("the answer has no token")
    if not ended:
        raise OSError("the answer broke off")


def _take(event: Mapping[str, Any], outcome: Outcome) -> bool:
    """Record an event; return whether it carries a token."""
    if "error" in event:
        raise OSError(f"the server says {json.dumps(event['error'])}")
    if usage := event.get("usage"):
        outcome.prompt_tokens = usage.get("prompt_tokens")
        outcome.completion_tokens = usage.get("completion_tokens")
    if SYNTHETIC in event:
        outcome.synthetic = event[SYNTHETIC]
    if not event.get("choices"):
        return False
    choice = event["choices"][0]
    if "delta" not in choice:
        outcome.pieces.append(choice.get("text") or "")
        return True
    delta = choice["delta"]
    said = delta.get("reasoning") or delta.get("reasoning_content") or ""
    outcome.pieces.append(said + (delta.get("content") or ""))
    # A chat may begin with an event that has only the role.
    return bool(said or delta.get("content") or delta.get("tool_calls"))


async def first_model(address: Address) -> dict[str, Any]:
    """Return the first entry of /v1/models; raise OSError if there is none."""
    models = (await request(address, "GET", "/v1/models")).json()
    if not models.get("data"):
        raise OSError(f"{address.host}:{address.port} names no model at /v1/models")
    return models["data"][0]


async def version(address: Address) -> str:
    """Return the version from /version, or "unknown"."""
    try:
        return str((await request(address, "GET", "/version")).json()["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"
