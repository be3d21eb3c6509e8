"""Agents with growing prompts: a small cache, the same above host memory, and an unlimited one.

The agents need four times the pages that the small cache has. The engines take turns on one core,
each time with an empty cache, so that a machine that slows down slows all of them.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console

from eagle3_jax.engine import Engine, EngineConfig
from serve.bench.common.command import finish, given_pair
from serve.bench.common.conditions import conditions, pin
from serve.bench.common.flags import add_pair_flags, add_shared
from serve.bench.common.held_out import user_prompts
from serve.bench.common.spread import Spread, in_turn
from serve.bench.studies.agents.trace import POOLS, AgentTrace, TraceResult, run_trace
from serve.pair.loading import build_engine
from serve.pair.notices import say_on_stderr
from serve.text_table import text_table

ENOUGH = 0.95
"""Of an unlimited cache's hits, what the small one with host memory must have."""
PAGE, ROOM = 16, 2**30
SMALL, TIERED, UNLIMITED = "no tier", "host memory", "unlimited"


@dataclass(frozen=True)
class CacheRun:
    """One cache. hits, prefilled, loaded: prompt tokens; different: answers that the unlimited
    cache's are not. tokens_per_s: generated, over the whole trace."""

    pages: int
    hits: int
    prefilled: int
    loaded: int
    preemptions: int
    different: int
    tokens_per_s: Spread


@dataclass(frozen=True)
class AgentsRecord:
    """All caches. hits_share: of the hits of the unlimited one, with host memory."""

    agents: int
    turns: int
    tokens_of_an_agent: int
    working_pages: int
    caches: dict[str, CacheRun]
    hits_share: float

    @property
    def holds(self) -> bool:
        """Whether host memory keeps enough of the hits."""
        return self.hits_share >= ENOUGH


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The pair, how many agents, turns and repetitions, and the core."""
    add_pair_flags(parser)
    parser.add_argument("--agents", type=int, default=24, metavar="N", help="agents; default 24")
    parser.add_argument("--turns", type=int, default=6, metavar="N", help="of each; default 6")
    add_shared(parser, "--repetitions", default=3)
    add_shared(parser, "--core", help="the engines' core; default: the last")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Compares the caches; status 1 where host memory keeps fewer hits than it should."""
    trace = AgentTrace(flags.agents, flags.turns)
    configs = trace_configs(trace)
    found = conditions(pin(flags.core))
    pair = given_pair(flags)
    text = [token for prompt in user_prompts(40) for token in pair.tokenizer.encode(prompt)]
    engines: dict[str, Engine] = {}
    for name, config in configs.items():
        say_on_stderr(f"compiling: {name}")
        engines[name] = build_engine(pair, config)
        engines[name].warmup()
    results: dict[str, TraceResult] = {}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for name in in_turn(engines, flags.repetitions):
        engines[name].reset_prefix_cache()
        start = time.perf_counter()
        results[name] = run_trace(engines[name], trace, text)
        rates[name].append(results[name].generated / (time.perf_counter() - start))
    result = agents_record(trace, configs, results, rates)
    found.print_to(console, flags.repetitions)
    print_result(console, result)
    return finish(flags, "agents", found, result)


def trace_configs(trace: AgentTrace) -> dict[str, EngineConfig]:
    """The engines that are compared; ValueError where a quarter of the agents is none."""
    return {
        SMALL: trace.config(PAGE, POOLS),
        TIERED: trace.config(PAGE, POOLS, ROOM),
        UNLIMITED: trace.config(PAGE, 0.5),
    }


def agents_record(
    trace: AgentTrace,
    configs: Mapping[str, EngineConfig],
    results: Mapping[str, TraceResult],
    rates: Mapping[str, list[float]],
) -> AgentsRecord:
    """The caches beside the unlimited one."""
    most = results[UNLIMITED]
    caches = {
        name: CacheRun(
            pages=configs[name].pool_pages - 1,
            hits=one.hits,
            prefilled=one.prefilled,
            loaded=one.loaded,
            preemptions=one.preemptions,
            different=sum(one.answers[key] != said for key, said in most.answers.items()),
            tokens_per_s=Spread.of(rates[name], rates=True),
        )
        for name, one in results.items()
    }
    pages = trace.working_pages(PAGE)
    share = results[TIERED].hits / most.hits
    return AgentsRecord(trace.agents, trace.turns, trace.length, pages, caches, share)


def print_result(console: Console, result: AgentsRecord) -> None:
    """Hits, work and speed of every cache."""
    title = (
        f"{result.agents} agents, {result.turns} turns, up to {result.tokens_of_an_agent} tokens "
        f"each: {result.working_pages} pages"
    )
    headings = ("cache", "pages", "hits", "prefilled", "loaded", "different", "tokens/s")
    table = text_table(title, headings, left=("cache",))
    for name, one in result.caches.items():
        counts = (one.pages, one.hits, one.prefilled, one.loaded, one.different)
        table.add_row(name, *(f"{count:,}" for count in counts), f"{one.tokens_per_s.median:.0f}")
    console.print(table)
    console.print(f"with host memory {result.hits_share:.1%} of an unlimited cache's hits")
