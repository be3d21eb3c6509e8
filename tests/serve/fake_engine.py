"""An engine without a model: answers are a known function of (prompt, seed)."""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eagle3_jax.engine import EngineStats, Logprob, Request, RequestOutput, Round
from eagle3_jax.engine.logprob_rows import LogprobsOfToken, PromptLogprobs
from eagle3_jax.engine.page_tiers import TierOccupancy, TokensByTier
from eagle3_jax.engine.programs.executor import Progress

VOCAB_SIZE = 128
MAX_MODEL_LEN = 256
ALPHABET = "abcdefghijklmnopqrstuvwxyz "
TOTAL_PAGES = 100
NUM_DRAFTS = 3


class CharTokenizer:
    """One token per ASCII character; a chat is its contents, one a line."""

    template_text = "{{ messages }}"

    @property
    def named_tokens(self) -> dict[str, str]:
        return {"eos_token": "~"}

    def encode(self, text: str, add_special: bool = False, most: int | None = None) -> list[int]:
        return list(text.encode("ascii"))

    def token_bytes(self, token_id: int, skip_special: bool = False) -> bytes:
        return bytes([token_id])

    def encode_chat(
        self, messages: Sequence[Any], most: int | None = None, /, **kwargs: Any
    ) -> list[int]:
        suffix = kwargs.get("suffix", "")
        return self.encode("\n".join(m["content"] for m in messages) + suffix)


class Held:
    """Work that has begun and ends when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *_: Any) -> None:
        self.begun.set()
        assert self.may_end.wait(10)


class HeldTokenizer(CharTokenizer):
    """Is held before it encodes one text."""

    def __init__(self, held: Held, text: str) -> None:
        self._held, self._text = held, text

    def encode(self, text: str, add_special: bool = False, most: int | None = None) -> list[int]:
        if text == self._text:
            self._held()
        return super().encode(text)


def expected_answer(prompt: str | list[int], seed: int, num_tokens: int) -> str:
    """Return the engine's answer without stop strings."""
    start = sum(prompt.encode() if isinstance(prompt, str) else prompt) + seed
    return "".join(ALPHABET[(start + 7 * i) % len(ALPHABET)] for i in range(num_tokens))


def scored(token_ids: Sequence[int], count: int | None) -> tuple[LogprobsOfToken, ...]:
    """The same best tokens at every place."""
    if count is None:
        return ()
    best_ids, best = array("i", range(97, 97 + count)), array("f", [-1.5] * count)
    said = best_ids.tobytes(), best.tobytes()
    return tuple(LogprobsOfToken(token_id, Logprob(-1.0, 1), *said) for token_id in token_ids)


def _prompt_scored(request: Request) -> PromptLogprobs:
    count = request.sampling.prompt_logprobs
    return () if count is None else (None, *scored(request.prompt_ids[1:], count))


@dataclass
class Sequence_:
    request: Request
    text: str
    finish_reason: str
    stop_reason: str | None
    position: int = 0


@dataclass
class FakeEngine:
    """Puts out up to `width` tokens a step: one, and the accepted drafts."""

    width: int = 2
    step_s: float = 0.0
    cached_tokens: int = 0
    cached_below: int = 0
    synthetic_acceptance_length: float | None = None
    fail_at_step: int | None = None
    hang_at_step: int | None = None
    warm: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    running: dict[str, Sequence_] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    asked: list[Request] = field(default_factory=list)
    num_steps: int = 0
    num_resets: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    rounds: Counter[Round] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.warm.set()
        self.go.set()

    @property
    def cached(self) -> TokensByTier:
        return TokensByTier(self.cached_tokens - self.cached_below, host=self.cached_below)

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def warmup(self, progress: Progress | None = None) -> None:
        self.warm.wait()

    def add(self, request: Request) -> None:
        if len(request.prompt_ids) >= MAX_MODEL_LEN:
            raise ValueError("the prompt is too long")
        if max(request.prompt_ids) >= VOCAB_SIZE:
            raise ValueError("prompt token ids must be below 128")
        if ord("!") in request.prompt_ids:
            raise ValueError("this engine does not like exclamation marks")
        sampling = request.sampling
        text = expected_answer(request.prompt_ids, sampling.seed or 0, sampling.max_tokens or 0)
        finish, stop_reason = "length", None
        for stop in sampling.stop:
            if stop in text:
                text, finish, stop_reason = text[: text.index(stop)], "stop", stop
        self.running[request.request_id] = Sequence_(request, text, finish, stop_reason)
        self.asked.append(request)
        self.prompt_tokens += len(request.prompt_ids)

    def cancel(self, request_id: str) -> None:
        if self.running.pop(request_id, None):
            self.cancelled.append(request_id)

    def reset_prefix_cache(self) -> bool:
        self.num_resets += not self.running
        return not self.running

    def step(self) -> list[RequestOutput]:
        self.go.wait()
        self.num_steps += 1
        if self.num_steps == self.fail_at_step:
            raise RuntimeError("the device is gone")
        if self.num_steps == self.hang_at_step:
            threading.Event().wait()
        time.sleep(self.step_s)
        running = self.running.values()
        self.started = [s.request.request_id for s in running if s.position == 0]
        return [self._advance(sequence) for sequence in list(self.running.values())]

    def _advance(self, sequence: Sequence_) -> RequestOutput:
        text = sequence.text[sequence.position : sequence.position + self.width]
        sequence.position += self.width
        finished = sequence.position >= len(sequence.text)
        if finished:
            del self.running[sequence.request.request_id]
        self.generation_tokens += len(text)
        made = Round(NUM_DRAFTS, NUM_DRAFTS, NUM_DRAFTS, self.width - 1, len(text))
        self.rounds[made] += 1
        return RequestOutput(
            request_id=sequence.request.request_id,
            token_ids=tuple(text.encode()),
            text=text,
            finish_reason=sequence.finish_reason if finished else None,  # type: ignore[arg-type]
            stop_reason=sequence.stop_reason if finished else None,
            rounds=(made,),
            prompt_tokens=len(sequence.request.prompt_ids),
            seed=sequence.request.sampling.seed or 0,
            cached=self.cached,
            origins=(*range(1, self.width), 0)[: len(text)],
            logprobs=scored(text.encode(), sequence.request.sampling.logprobs),
            prompt_logprobs=_prompt_scored(sequence.request),
        )

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self.running),
            num_waiting=0,
            kv_cache_usage=len(self.running) / TOTAL_PAGES,
            num_preemptions=0,
            rounds=dict(self.rounds),
            num_speculative_tokens=NUM_DRAFTS,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            free_pages=TOTAL_PAGES - len(self.running),
            total_pages=TOTAL_PAGES,
            prefix_cache_queries=self.prompt_tokens,
            cached=self.cached,
            tiers=(TierOccupancy("host", 1, 4),) if self.cached_below else (),
            damaged_pages=7,
            failed_fetches=8,
            foreign_files=9,
            synthetic_acceptance_length=self.synthetic_acceptance_length,
        )
