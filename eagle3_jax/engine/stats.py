"""Load and counters of an engine."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle3_jax.engine.acceptance import Acceptance, Round

if TYPE_CHECKING:
    from eagle3_jax.engine.scheduler import Scheduler


@dataclass
class Counters:
    """What only ever grows."""

    rounds: Counter[Round] = field(default_factory=Counter)
    skipped_finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclass(frozen=True)
class EngineStats(Acceptance):
    """A snapshot: the rounds of all requests, and the load.

    skipped_finished: draft tokens of rounds that were dispatched before the host knew that their
    request had ended. prefix_cache_queries, prefix_cache_hits, prefix_cache_loaded: prompt tokens
    looked up, those found, and those of them that came from a tier below. free_pages includes pages
    that are kept only for whoever comes with their contents.
    synthetic_acceptance_length: None unless acceptance is synthetic, and answers not the model's.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_preemptions: int
    prompt_tokens: int
    generation_tokens: int
    free_pages: int
    total_pages: int
    skipped_finished: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_loaded: int = 0
    synthetic_acceptance_length: float | None = None

    @classmethod
    def of(
        cls,
        scheduler: "Scheduler",
        counters: Counters,
        num_speculative_tokens: int,
        synthetic_acceptance_length: float | None,
    ) -> "EngineStats":
        """As they are now."""
        pages, prefixes = scheduler.pages, scheduler.prefixes
        return cls(
            **{**vars(counters), "rounds": dict(counters.rounds)},
            num_speculative_tokens=num_speculative_tokens,
            num_running=len(scheduler.admitted),
            num_waiting=len(scheduler.waiting),
            kv_cache_usage=1 - pages.free / pages.total,
            num_preemptions=scheduler.num_preemptions,
            free_pages=pages.free,
            total_pages=pages.total,
            prefix_cache_queries=prefixes.num_queries,
            prefix_cache_hits=prefixes.num_hits,
            prefix_cache_loaded=prefixes.num_loaded,
            synthetic_acceptance_length=synthetic_acceptance_length,
        )
