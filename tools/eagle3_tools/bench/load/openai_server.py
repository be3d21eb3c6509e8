"""An OpenAI server as a benchmark sees it: streamed answers with their times, and its metrics."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_tools.bench.load.http_client import SHOWN, Address, Response, exchange
from eagle3_tools.bench.load.prompts import Prompt
from eagle3_tools.bench.load.workload import Endpoint

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
SYNTHETIC = "synthetic_acceptance_length"


@dataclass
class Outcome:
    """What became of a request. Times are in seconds.

    ttft: to the first event that carries a token; gaps: between such events, each of which may
    carry several tokens; latency: to the last one. completion_tokens and prompt_tokens: as the
    server counts them, None where it does not. synthetic: the accept length it says it makes up.
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
        """The answer, its reasoning included."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class Server:
    """A server and what is served there."""

    address: Address
    model: str
    endpoint: Endpoint = "completions"

    def body(self, prompt: Prompt, **options: Any) -> dict[str, Any]:
        """A streamed, greedy request for exactly so many tokens."""
        asked: dict[str, Any] = {"prompt": prompt.text}
        if self.endpoint == "chat":
            asked = {"messages": [{"role": "user", "content": prompt.content}]}
        fixed = {
            "model": self.model,
            "max_tokens": prompt.max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return {**asked, **fixed, **options}

    async def answer(self, prompt: Prompt) -> Outcome:
        """Sends a prompt and times what comes; a failure is an outcome too."""
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
    """Notes what an event says; whether it carries a token."""
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
    # A chat may begin with an event that only names the role.
    return bool(said or delta.get("content") or delta.get("tool_calls"))
