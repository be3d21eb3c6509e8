"""Time of a decode step by operation, from XLA's profiler."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eagle3_jax.engine import EngineConfig
from eagle3_jax.models.kimi import KimiTarget
from eagle3_tools.bench.cpu.phases import PhaseChains
from eagle3_tools.bench.gpu.launched import profile_of

BETWEEN = "between operations"
SCOPES = {
    "moe_experts": "routed and shared experts",
    "moe_routed_experts": "routed and shared experts",
    "moe_router": "router",
    "mla_decode": "attention over the cache",
    "gqa_decode": "attention over the cache",
    "mla_absorb_query": "queries absorbed",
    "cache_latents": "norms, rotation and cache",
    "target_layer": "other products and norms of layers",
    "verify": "head, sampling and commit",
}
"""Scopes of the round, inner before outer, and their names in tables."""
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$", re.MULTILINE)
SOURCE = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True)
class OperationTime:
    """Microseconds per step without nested operations; `count` is the number of runs per step."""

    name: str
    microseconds: float
    count: float


class Event(NamedTuple):
    """One profiler event of a thread, times in nanoseconds."""

    name: str
    start: float
    duration: float


def profile_steps(
    target: KimiTarget, prompts: Sequence[Sequence[int]], context: int, steps: int
) -> list[OperationTime]:
    """Profile plain greedy decoding of these prompts; return the longest operations first.

    Use the shares only: the profiler slows a step by writing an event for each operation.
    """
    batch = len(prompts)
    config = EngineConfig(0, context, batch, batch_buckets=(batch,))
    chains = PhaseChains(target, None, config, prompts, steps)
    chains.time_round()
    profile = profile_of(chains.time_round)
    scopes = scopes_of(chains.program_text)
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for plane in profile.planes:
        for line in plane.lines:
            events = [Event(e.name, e.start_ns, e.duration_ns) for e in line.events]
            if any(event.name in scopes for event in events):
                add_own_times(events, scopes, times, counts)
    return [
        OperationTime(name, nanoseconds / 1e3 / steps, counts[name] / steps)
        for name, nanoseconds in times.most_common()
    ]


def scopes_of(program: str) -> Mapping[str, str]:
    """Map each instruction of a compiled program to its name in SCOPES, or "other".

    A product that XLA created has no source; it counts for the instruction that reads its result.
    """
    lines = dict(INSTRUCTION.findall(program))
    found = {name: _scope(line) for name, line in lines.items()}
    readers: dict[str, str] = {}
    for name, line in lines.items():
        for operand in re.findall(r"%([\w.-]+)", line):
            readers.setdefault(operand, name)
    for name, scope in found.items():
        reader = readers.get(name)
        while scope is None and reader is not None:
            scope, reader = found.get(reader), readers.get(reader)
        found[name] = scope
    return {name: scope or "other" for name, scope in found.items()}


def _scope(line: str) -> str | None:
    source = SOURCE.search(line)
    return next((SCOPES[s] for s in SCOPES if source and s in source[1]), None)


def add_own_times(
    events: Iterable[Event],
    scopes: Mapping[str, str],
    times: Counter[str],
    counts: Counter[str],
) -> None:
    """Add a thread's events to `times` and `counts`, each without its nested events.

    Events that are no instruction of the program are XLA's own: starting and awaiting operations.
    The wait for a whole program is left out.
    """
    under_way: list[tuple[str, float]] = []
    for event in sorted(events, key=lambda e: (e.start, -e.duration)):
        if "wait for completion" in event.name:
            continue
        while under_way and under_way[-1][1] <= event.start:
            under_way.pop()
        name = scopes.get(event.name, BETWEEN)
        if under_way:
            times[under_way[-1][0]] -= event.duration  # pyright: ignore[reportArgumentType]
        times[name] += event.duration  # pyright: ignore[reportArgumentType]
        counts[name] += 1
        under_way.append((name, event.start + event.duration))
