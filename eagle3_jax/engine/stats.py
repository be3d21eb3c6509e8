"""Counters of an engine, with vLLM's meanings."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EngineStats:
    """A snapshot. accept_length = 1 + num_accepted_tokens / num_drafts (bonus token included).

    prefix_cache_queries, prefix_cache_hits: prompt tokens looked up, and those found. free_pages
    includes pages that are kept only for whoever comes with their contents.
    """

    num_running: int
    num_waiting: int
    kv_cache_usage: float
    num_preemptions: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_per_pos: tuple[int, ...]
    prompt_tokens: int
    generation_tokens: int
    free_pages: int
    total_pages: int
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


@dataclass
class Counters:
    """What only ever grows. A draft is one round of one sequence that verified drafts."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_pos: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    generation_tokens: int = 0

    def count_round(self, verified: int, accepted: int) -> None:
        """Adds one verify of one sequence."""
        if verified == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += verified
        self.num_accepted_tokens += accepted
        for position in range(accepted):
            self.num_accepted_per_pos[position] += 1
