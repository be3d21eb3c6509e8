"""Engine outputs gathered as the choices of one client request."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from eagle3_jax.engine import Acceptance, CollectedOutput, Request, RequestOutput
from eagle3_jax.engine.kv.tokens_by_tier import TokensByTier
from serve.engine.stream import OutputStream


@dataclass
class ChoiceState(CollectedOutput):
    """What one choice has put out so far."""

    index: int
    request: Request

    @property
    def seed(self) -> int | None:
        """The seed that gives this choice again."""
        return self.request.sampling.seed

    @property
    def acceptance(self) -> Acceptance:
        """What speculation did for this choice (docs/metrics.md)."""
        return Acceptance(Counter(self.rounds), num_speculative_tokens=0)


Part = ChoiceState | RequestOutput
"""A choice once it is whole, or one output of it."""


@dataclass(frozen=True)
class TokenCounts:
    """A prompt counts once however many choices it has; tokens found were not run again."""

    prompt: int
    found: TokensByTier
    completion: int

    @property
    def cached(self) -> int:
        """Tokens found, wherever."""
        return self.found.total

    @property
    def cached_details(self) -> dict[str, dict[str, int]]:
        """A field that says where they were found; none where that was on the devices alone."""
        return {"cached_tokens_details": self.found._asdict()} if self.found.below else {}


class Choices:
    """The choices of one client request, filled from its output stream."""

    def __init__(
        self, requests: Sequence[Request], num_prompts: int, *, prompt_only: bool = False
    ) -> None:
        """prompt_only: what is generated, if only because something must be, is left out."""
        self.states = [ChoiceState(index, request) for index, request in enumerate(requests)]
        self._by_id = {state.request.request_id: state for state in self.states}
        self._prompt_only = prompt_only
        self._siblings = len(requests) // num_prompts
        self.first_output: float | None = None
        """When the first output came, in seconds of the monotonic clock."""

    @property
    def seed(self) -> int | None:
        """The first choice's seed: with one prompt, sibling i has seed + i."""
        return self.states[0].seed

    @property
    def counts(self) -> TokenCounts:
        """The tokens so far."""
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
        """Draft tokens that were accepted so far."""
        return sum(state.acceptance.num_accepted_tokens for state in self.states)

    @property
    def finish_reasons(self) -> list[str]:
        """Of each choice, "abort" where it has not finished."""
        return [state.finish_reason or "abort" for state in self.states]

    async def follow(
        self, stream: OutputStream
    ) -> AsyncIterator[tuple[ChoiceState, RequestOutput]]:
        """Every output with the choice it belongs to, which already holds it."""
        async for output in stream:
            if self.first_output is None:
                self.first_output = time.monotonic()
            output = _without_answer(output) if self._prompt_only else output
            state = self._by_id[output.request_id]
            state.take(output)
            yield state, output

    async def collect(self, stream: OutputStream) -> None:
        """Takes every output."""
        async for _ in self.follow(stream):
            pass


def _without_answer(output: RequestOutput) -> RequestOutput:
    reason = output.finish_reason and "length"
    bare = replace(output, token_ids=(), text="", rounds=(), logprobs=(), origins=())
    return replace(bare, finish_reason=reason, stop_reason=None)
