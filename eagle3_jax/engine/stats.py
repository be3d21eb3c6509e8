"""Load and counters of an engine."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eagle3_jax.engine.acceptance import Acceptance, Round
from eagle3_jax.engine.page_tiers import NO_TOKENS, TierOccupancy, TokensByTier

if TYPE_CHECKING:
    from eagle3_jax.engine.images.encoder_cache import EncoderCache
    from eagle3_jax.engine.scheduler import Scheduler


@dataclass
class Counters:
    """Monotonic counters."""

    rounds: Counter[Round] = field(default_factory=Counter)
    skipped_finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclass(frozen=True)
class EngineStats(Acceptance):
    """A snapshot of load, and of the rounds of all requests.

    Attributes:
        skipped_finished: Drafts of rounds dispatched before their request was known to have ended.
        prefix_cache_queries, cached: Prompt tokens looked up, and found by tier.
        free_pages, tiers: Free pages, also those with cached contents; memory tiers' occupancy.
        damaged_pages, foreign_files: Files that were not the page of their name, or no pages.
        failed_fetches: Pages that a disk or server had and could not deliver.
        encoder_cache_queries, encoder_cache_hits: Images that prefills needed, and those with
            cached features, which use encoder_cache_tokens of encoder_cache_capacity.
        images_encoded: Encodings of other images, including repeated ones.
        num_deferred: Waiting sequences whose pages are in transfer to host memory.
        synthetic_acceptance_length: None if acceptance is real and answers are the model's.
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
    cached: TokensByTier = NO_TOKENS
    tiers: tuple[TierOccupancy, ...] = ()
    damaged_pages: int = 0
    failed_fetches: int = 0
    foreign_files: int = 0
    encoder_cache_queries: int = 0
    encoder_cache_hits: int = 0
    encoder_cache_tokens: int = 0
    encoder_cache_capacity: int = 0
    images_encoded: int = 0
    num_deferred: int = 0
    synthetic_acceptance_length: float | None = None

    @property
    def prefix_cache_hits(self) -> int:
        """Prompt tokens found in any tier."""
        return self.cached.total

    @property
    def prefix_cache_loaded(self) -> int:
        """Prompt tokens found and copied to the devices from elsewhere."""
        return self.cached.below

    @property
    def computed_prompt_tokens(self) -> int:
        """Prompt tokens looked up and not found."""
        return self.prefix_cache_queries - self.cached.total

    @property
    def prefix_cache_missed(self) -> int:
        """Prompt tokens looked up that were not on the devices."""
        return self.prefix_cache_queries - self.cached.device

    @classmethod
    def of(
        cls,
        schedulers: "Sequence[Scheduler]",
        counters: Counters,
        num_speculative_tokens: int,
    ) -> "EngineStats":
        first, disk, cached = schedulers[0], schedulers[0].disk, NO_TOKENS
        for scheduler in schedulers:
            cached = cached.plus(scheduler.prefixes.hits)
        free, total = (
            sum(getattr(one.pages, name) for one in schedulers) for name in ("free", "total")
        )
        return cls(
            **{**vars(counters), "rounds": dict(counters.rounds)},
            num_speculative_tokens=num_speculative_tokens,
            num_running=sum(len(one.admitted) for one in schedulers),
            num_waiting=sum(len(one.waiting) for one in schedulers),
            num_deferred=first.num_deferred,
            kv_cache_usage=1 - free / total,
            num_preemptions=sum(one.num_preemptions for one in schedulers),
            free_pages=free,
            total_pages=total,
            prefix_cache_queries=sum(one.prefixes.num_queries for one in schedulers),
            cached=cached,
            tiers=first.tier_occupancy,
            damaged_pages=disk.num_damaged if disk else 0,
            failed_fetches=first.incoming.failed if first.incoming else 0,
            foreign_files=disk.num_ignored if disk else 0,
            **_of_images([one.images for one in schedulers if one.images]),
            synthetic_acceptance_length=first.config.method.synthetic_acceptance_length,
        )


def _of_images(caches: "Sequence[EncoderCache]") -> dict[str, Any]:
    return {
        "encoder_cache_queries": sum(cache.num_queries for cache in caches),
        "encoder_cache_hits": sum(cache.num_hits for cache in caches),
        "encoder_cache_tokens": sum(cache.num_tokens for cache in caches),
        "encoder_cache_capacity": sum(cache.layout.capacity for cache in caches),
        "images_encoded": sum(cache.num_encoded for cache in caches),
    }
