"""Time of a decode step by operation, from XLA's profiler."""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax

from eagle3_jax.engine import EngineConfig
from eagle3_jax.models.kimi import KimiTarget
from eagle3_tools.bench.cpu.phases import PhaseChains

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
"""Scopes of the round, the inner before the outer, and what they are called here."""
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$", re.MULTILINE)
SOURCE = re.compile(r'op_name="([^"]*)"')


@dataclass(frozen=True)
class OperationTime:
    """Microseconds of one step, without what runs inside; count: how often it runs a step."""

    name: str
    microseconds: float
    count: float


class Event(NamedTuple):
    """One event of a thread, times in nanoseconds."""

    name: str
    start: float
    duration: float


def profile_steps(
    target: KimiTarget, prompts: Sequence[Sequence[int]], context: int, steps: int
) -> list[OperationTime]:
    """Plain greedy decoding of these prompts under the profiler, the longest operations first.

    The profiler makes a step slower by what it writes for each event: read shares.
    """
    batch = len(prompts)
    config = EngineConfig(0, context, batch, batch_buckets=(batch,))
    chains = PhaseChains(target, None, config, prompts, steps)
    chains.time_round()
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory):
            chains.time_round()
        (file,) = Path(directory).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
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
    """Each instruction of a compiled program -> what SCOPES calls its part of the round.

    A product that XLA made has no source of its own: it belongs to what reads its result.
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
    """Adds a thread's events to both: durations less those of the events inside.

    What is no instruction of the program is XLA's own: starting operations, waiting for them. The
    wait of a whole program is left out.
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
