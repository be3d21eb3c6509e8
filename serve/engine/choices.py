"""Collect engine outputs as the choices of one client request."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from eagle3_jax.engine import Acceptance, CollectedOutput, Request, RequestOutput
from eagle3_jax.engine.page_tiers import TokensByTier
from serve.engine.stream import OutputStream


@dataclass
class ChoiceState(CollectedOutput):
    """The output of one choice so far."""

    index: int
    request: Request

    @property
    def seed(self) -> int | None:
        """The seed that reproduces this choice."""
        return self.request.sampling.seed

    @property
    def acceptance(self) -> Acceptance:
        """Acceptance of this choice's drafts (docs/metrics.md)."""
        return Acceptance(Counter(self.rounds), num_speculative_tokens=0)


Part = ChoiceState | RequestOutput
"""A whole choice, or one output of it."""


def ends_with_stop_id(part: Part) -> bool:
    """Return whether its last token is a stop id: it has ended, but not by a stop string."""
    return part.finish_reason == "stop" and not isinstance(part.stop_reason, str)


@dataclass(frozen=True)
class TokenCounts:
    """Token counts: a prompt counts once for all its choices; `found` tokens were cached."""

    prompt: int
    found: TokensByTier
    completion: int

    @property
    def cached(self) -> int:
        """Number of cached tokens in all tiers."""
        return self.found.total

    @property
    def cached_details(self) -> dict[str, dict[str, int]]:
        """A field with the counts by tier, or no field if all were found on the devices."""
        return {"cached_tokens_details": self.found._asdict()} if self.found.below else {}


class Choices:
    """The choices of one client request, filled from its output stream."""

    def __init__(
        self, requests: Sequence[Request], num_prompts: int, *, prompt_only: bool = False
    ) -> None:
        """Track the requests; `prompt_only` discards their mandatory generated token."""
        self.states = [ChoiceState(index, request) for index, request in enumerate(requests)]
        self._by_id = {state.request.request_id: state for state in self.states}
        self._prompt_only = prompt_only
        self._siblings = len(requests) // num_prompts
        self.first_output: float | None = None
        """Time of the first output, in seconds of the monotonic clock."""

    @property
    def seed(self) -> int | None:
        """Seed of the first choice; with one prompt, choice i has this seed + i."""
        return self.states[0].seed

    @property
    def counts(self) -> TokenCounts:
        """Token counts so far."""
        firsts = self.states[:: self._siblings]
        return TokenCounts(
            prompt=sum(len(state.request.prompt_ids) for state in firsts),
            found=reduce(TokensByTier.plus, (state.cached for state in firsts)),
            completion=sum(len(state.token_ids) for state in self.states),
        )

    @property
    def by_prompt(self) -> list[list[ChoiceState]]:
        """The choices of each prompt."""
        starts = range(0, len(self.states), self._siblings)
        return [self.states[start : start + self._siblings] for start in starts]

    @property
    def accepted_tokens(self) -> int:
        """Number of accepted draft tokens so far."""
        return sum(state.acceptance.num_accepted_tokens for state in self.states)

    @property
    def finish_reasons(self) -> list[str]:
        """Finish reason of each choice, "abort" if it has not finished."""
        return [state.finish_reason or "abort" for state in self.states]

    async def follow(
        self, stream: OutputStream
    ) -> AsyncIterator[tuple[ChoiceState, RequestOutput]]:
        """Yield every output with the choice that it belongs to, which already contains it."""
        async for output in stream:
            if self.first_output is None:
                self.first_output = time.monotonic()
            output = _without_answer(output) if self._prompt_only else output
            state = self._by_id[output.request_id]
            state.add(output)
            yield state, output

    async def collect(self, stream: OutputStream) -> None:
        """Consume all outputs."""
        async for _ in self.follow(stream):
            pass


def _without_answer(output: RequestOutput) -> RequestOutput:
    reason = output.finish_reason and "length"
    bare = replace(output, token_ids=(), text="", rounds=(), logprobs=(), origins=())
    return replace(bare, finish_reason=reason, stop_reason=None)
