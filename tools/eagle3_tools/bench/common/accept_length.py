"""Measure accept length and correctness on the held-out prompts, by category."""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from convert.text.tokenizer import Tokenizer
from eagle3_jax.engine import EngineStats, Request
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.common.held_out import HeldOutPrompt
from eagle3_tools.make_demo.corpus import CATEGORIES, correct
from serve.engine.messages import EngineLike
from serve.pair.loading import LoadedPair, build_engine, fit_length

OVERALL = "overall"
ANSWER_TOKENS = 160
"""Limit of an answer. The corpus has no longer answer, so a longer one is wrong anyway."""


@dataclass(frozen=True)
class AcceptCounts:
    """Counters as vLLM defines them. A draft is a round of one sequence with draft tokens."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]

    @classmethod
    def between(cls, before: EngineStats, after: EngineStats) -> "AcceptCounts":
        """Return the counts between two snapshots."""
        old, new = before.num_accepted_per_pos, after.num_accepted_per_pos
        return cls(
            after.num_drafts - before.num_drafts,
            after.num_draft_tokens - before.num_draft_tokens,
            after.num_accepted_tokens - before.num_accepted_tokens,
            tuple(b - a for a, b in zip(old, new, strict=True)),
        )

    @property
    def accept_length(self) -> float:
        """Tokens committed per round: 1 + accepted / drafts (1 without drafts)."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def per_position(self) -> tuple[float, ...]:
        """Fraction of drafts whose token at each position was accepted."""
        return tuple(count / max(self.drafts, 1) for count in self.accepted_per_position)

    @property
    def histogram(self) -> tuple[int, ...]:
        """Number of drafts with exactly 0, 1, ... accepted tokens; acceptance is a prefix."""
        least = (self.drafts, *self.accepted_per_position, 0)
        return tuple(more - fewer for more, fewer in pairwise(least))


@dataclass(frozen=True)
class AcceptRow:
    """Accept length of one category, or of all.

    `right` is the fraction of correct answers (NaN if not judged), `histogram` the rounds by
    accepted draft tokens, 0 first (empty if unknown), `distinct_bigrams` the distinct fraction of
    adjacent token pairs. A model that repeats itself has few, and a meaningless accept length.
    """

    category: str
    prompts: int
    tokens: int
    counts: AcceptCounts
    accept_length: float
    per_position: tuple[float, ...]
    right: float
    histogram: tuple[int, ...]
    distinct_bigrams: float


def accept_tables(
    pair: LoadedPair,
    prompts: Sequence[HeldOutPrompt],
    config: EngineConfig,
    temperatures: Iterable[float],
    max_model_len: int | None = None,
) -> list[list[AcceptRow]]:
    """Measure accept length by category, with one engine at each of the temperatures.

    Without `max_model_len` the context fits the prompts.
    """
    needed = max(len(prompt.token_ids) for prompt in prompts) + ANSWER_TOKENS
    fitting = fit_length(config, max_model_len or needed, pair.target.config)
    engine = build_engine(pair, fitting, clock=time.perf_counter)
    greedy = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, seed=0)
    return [
        measure_accept(engine, pair.tokenizer, prompts, replace(greedy, temperature=t))[0]
        for t in temperatures
    ]


def measure_accept(
    engine: EngineLike,
    tokenizer: Tokenizer,
    prompts: Sequence[HeldOutPrompt],
    sampling: SamplingParams,
) -> tuple[list[AcceptRow], list[list[int]]]:
    """Return a row for each category, then the overall one, and the token ids of every answer.

    The engine must be warm. Prompt i uses the sampling seed + i.
    """
    start, rows, given = engine.stats(), [], {}
    for category in CATEGORIES:
        chosen = [(i, p) for i, p in enumerate(prompts) if p.category == category]
        before = engine.stats()
        requests = [Request(f"{i}", p.token_ids, _seeded(sampling, i)) for i, p in chosen]
        answers = drive(engine, requests)
        right = sum(
            correct(category, p.conversation, _text(tokenizer, answers[f"{i}"].token_ids))
            for i, p in chosen
        )
        said = {i: answers[f"{i}"].token_ids for i, _ in chosen}
        rows.append(_row(category, said.values(), before, engine.stats(), right))
        given |= said
    right = sum(round(row.right * row.prompts) for row in rows)
    overall = _row(OVERALL, given.values(), start, engine.stats(), right)
    return [*rows, overall], [given[i] for i in range(len(prompts))]


def _seeded(sampling: SamplingParams, index: int) -> SamplingParams:
    return replace(sampling, seed=(sampling.seed or 0) + index)


def _text(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Decode an answer as the corpus writes it, with special tokens and without the final EOS."""
    stopped = token_ids and token_ids[-1] in tokenizer.eos_token_ids
    return tokenizer.decode(token_ids[:-1] if stopped else token_ids, skip_special=False)


def distinct_bigrams(answers: Iterable[Sequence[int]]) -> float:
    """Return distinct pairs of adjacent tokens over all pairs; 0 if no answer has two tokens."""
    pairs = [pair for answer in answers for pair in pairwise(answer)]
    return len(set(pairs)) / max(len(pairs), 1)


def _row(
    category: str,
    answers: Collection[Sequence[int]],
    before: EngineStats,
    after: EngineStats,
    right: int,
) -> AcceptRow:
    counts = AcceptCounts.between(before, after)
    return AcceptRow(
        category=category,
        prompts=len(answers),
        tokens=after.generation_tokens - before.generation_tokens,
        counts=counts,
        accept_length=counts.accept_length,
        per_position=counts.per_position,
        right=right / max(len(answers), 1),
        histogram=counts.histogram,
        distinct_bigrams=distinct_bigrams(answers),
    )
