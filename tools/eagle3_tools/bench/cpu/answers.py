"""Tokens a second of whole answers through one engine, prefill included."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.common.spread import Spread
from serve.pair.loading import LoadedPair

MAX_TOKENS = 160


@dataclass(frozen=True)
class AnswerSpeed:
    """Greedy answers to the same prompts with and without drafts, in turn.

    tokens_per_s, plain_tokens_per_s: kept tokens of all answers over the seconds they took.
    speedup: the first over the second, within a repetition. kept_length: tokens a round gave to
    its answer, which is the EOS-corrected accept length of docs/metrics.md; the raw one counts
    drafts behind an answer's end too. Every spread is of rates: its best is the largest.
    """

    prompts: int
    tokens: int
    tokens_per_s: Spread
    plain_tokens_per_s: Spread
    speedup: Spread
    kept_length: float

    @classmethod
    def of(cls, run: "AnswerRun", plain: "AnswerRun") -> "AnswerSpeed":
        """Both are compared run by run; the first of each does not count."""
        rates, others = run.rates[1:], plain.rates[1:]
        speedups = [a / b for a, b in zip(rates, others, strict=True)]
        return cls(
            prompts=run.prompts,
            tokens=run.tokens,
            tokens_per_s=Spread.of(rates, rates=True),
            plain_tokens_per_s=Spread.of(others, rates=True),
            speedup=Spread.of(speedups, rates=True),
            kept_length=run.kept_length,
        )


class AnswerRun:
    """All prompts through a warm engine, as many at a time as it has slots. rates: tokens a second
    of all runs."""

    def __init__(
        self, pair: LoadedPair, config: EngineConfig, prompts: Sequence[Sequence[int]]
    ) -> None:
        # The same prompts again and again: found in the cache they would cost no prefill.
        config = replace(config, enable_prefix_caching=False)
        self._engine = Engine(pair.target, pair.draft, config, eos_token_ids=pair.eos_token_ids)
        self._engine.warmup()
        sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, seed=0)
        self._requests = [Request(f"{i}", list(p), sampling) for i, p in enumerate(prompts)]
        self.prompts, self.tokens, self.rates = len(self._requests), 0, list[float]()

    def tokens_per_s(self) -> float:
        """Of one run."""
        start = time.perf_counter()
        answers = drive(self._engine, self._requests)
        elapsed = time.perf_counter() - start
        self.tokens = sum(len(answer.token_ids) for answer in answers.values())
        return self.tokens / elapsed

    @property
    def kept_length(self) -> float:
        """1 without drafts."""
        return self._engine.stats().accept_length_eos_corrected or 1.0
