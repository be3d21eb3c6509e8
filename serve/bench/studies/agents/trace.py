"""A trace of agents: each turn's prompt is all that was said before, and something new."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_jax.engine import CollectedOutput, EngineConfig, EngineStats, Request
from eagle3_jax.sampling.params import SamplingParams
from serve.bench.common.drive import drive
from serve.engine.messages import EngineLike

POOLS = 4
"""How many times what the agents need at their ends is what the pool holds."""


@dataclass(frozen=True)
class AgentTrace:
    """Who asks for what. All counts but the first two are tokens; system: what all begin with;
    observed: what comes in before each turn; answered: of each answer."""

    agents: int
    turns: int
    system: int = 64
    observed: int = 48
    answered: int = 16

    @property
    def length(self) -> int:
        """Tokens of an agent at its end."""
        return self.system + self.turns * (self.observed + self.answered)

    def working_pages(self, page_tokens: int) -> int:
        """Pages of all agents at their ends; what all begin with counts once."""
        own = -(-(self.length - self.system) // page_tokens)
        return self.agents * own + -(-self.system // page_tokens)

    def config(self, page_size: int, pools: float, kv_offloading_bytes: int = 0) -> EngineConfig:
        """An engine of four slots, whose pool holds 1 / pools of the working set."""
        pages = int(self.working_pages(page_size) / pools)
        return EngineConfig(
            num_speculative_tokens=3,
            max_model_len=self.length + 1,
            max_num_seqs=4,
            batch_buckets=(4,),
            page_size=page_size,
            num_pages=pages + 1,
            prefill_chunk=4 * page_size,
            kv_offloading_bytes=kv_offloading_bytes,
        )


@dataclass(frozen=True)
class TraceResult:
    """What a run cost. answers: token ids of every turn of every agent, by request."""

    generated: int
    hits: int
    prefilled: int
    loaded: int
    preemptions: int
    answers: dict[str, list[int]]


def run_trace(engine: EngineLike, trace: AgentTrace, text: Sequence[int]) -> TraceResult:
    """All turns, the agents of each in an order of its own. text: what is said is cut from it."""
    rng, before = random.Random(0), engine.stats()

    def said(count: int) -> list[int]:
        start = rng.randrange(len(text) - count)
        return list(text[start : start + count])

    system, answers = said(trace.system), dict[str, CollectedOutput]()
    history = {agent: list(system) for agent in range(trace.agents)}
    for turn in range(trace.turns):
        for agent in sorted(history):
            history[agent] += said(trace.observed)
        sampling = SamplingParams(temperature=0, seed=0, max_tokens=trace.answered, ignore_eos=True)
        order = rng.sample(sorted(history), trace.agents)
        asked = {agent: Request(f"{agent}-{turn}", [*history[agent]], sampling) for agent in order}
        answers |= (found := drive(engine, asked.values()))
        for agent in asked:
            history[agent] += found[f"{agent}-{turn}"].token_ids
    tokens = {name: answer.token_ids for name, answer in answers.items()}
    return _result(before, engine.stats(), tokens)


def _result(before: EngineStats, after: EngineStats, answers: dict[str, list[int]]) -> TraceResult:
    def grown(name: str) -> int:
        return getattr(after, name) - getattr(before, name)

    return TraceResult(
        generated=sum(map(len, answers.values())),
        hits=grown("prefix_cache_hits"),
        prefilled=grown("computed_prompt_tokens"),
        loaded=grown("prefix_cache_loaded"),
        preemptions=grown("num_preemptions"),
        answers=answers,
    )
