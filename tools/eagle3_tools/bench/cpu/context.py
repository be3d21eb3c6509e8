"""Measure a round's time against its context length: attention, and the rest."""

import random
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_jax.engine.sequence import Sequence
from eagle3_tools.bench.common.spread import Spread
from eagle3_tools.bench.cpu.operations import SCOPES, Event, scopes_of
from eagle3_tools.bench.cpu.phases import ENDLESS
from eagle3_tools.bench.gpu.launched import profile_of
from serve.pair.loading import LoadedPair
from serve.pair.notices import Notify

POSITIONS = 262_144
CONTEXTS = (1024, 4096, 16_384, 65_536, POSITIONS)
DRAFTS, ROUNDS, PROFILED = 3, 8, 4
"""k; timed rounds; and rounds under the profiler, which writes an event per chunk of keys."""
CACHE_BYTES = 128 << 20
"""More than the caches of a CPU hold, because a long attention evicts everything else."""


@dataclass(frozen=True)
class ContextResult:
    """Times of a round of one sequence of this length, in seconds.

    `step` is Engine.step() in steady state. The others have cold caches, as after a long attention:
    `host` is CPU time of the Python thread, `attention` and `rest` are profiled device operations.
    """

    context: int
    step: Spread
    host: Spread
    attention: Spread
    rest: Spread


class LongEngine(Engine):
    """An engine for one sequence of up to 262,144 positions that needs no prefill."""

    def __init__(self, pair: LoadedPair) -> None:
        config = EngineConfig(DRAFTS, POSITIONS, 1, enable_structured_outputs=False)
        super().__init__(pair.target, pair.draft, config, eos_token_ids=())
        self.warmup()

    def begin(self, length: int, seed: int) -> None:
        """Start a random sequence; all but its last page is found in the cache as rows of zeros."""
        rng, config = random.Random(seed), self.config
        prompt = [rng.randrange(self._vocab_size) for _ in range(length)]
        request = Request("long", prompt, ENDLESS)
        known = Sequence.of(request, (), config.max_model_len, None)
        pages = self._replicas.first.pages
        pages.forget_all()
        known.pages.extend(pages.allocate(length // config.page_size) or ())
        self._replicas.first.prefixes.publish(known, length - 1)
        pages.release(known.pages)
        self.add(request)
        while not self.step():
            pass

    def end(self) -> None:
        """Cancel the sequence and read the rounds in flight."""
        self.cancel("long")
        while self.has_work:
            self.step()

    @property
    def round_scopes(self) -> Mapping[str, str]:
        """Instruction of the compiled round -> its part of the round."""
        program = self._runner.executor.compiled[Program(ProgramKind.ROUND, 1)]
        return scopes_of(program.as_text())  # pyright: ignore[reportFunctionMemberAccess]


def compare_contexts(pair: LoadedPair, repetitions: int, notify: Notify) -> list[ContextResult]:
    """Return a result for each of CONTEXTS, which no round exceeds; first samples do not count."""
    engine, results = LongEngine(pair), []
    scopes, most = engine.round_scopes, 4 + 2 * ROUNDS + PROFILED
    for context in CONTEXTS:
        notify(f"rounds: context {context}")
        steps, hosts, parts = [], [], []
        for repetition in range(1 + repetitions):
            engine.begin(context - most * engine.config.width, repetition)
            for _ in range(2):
                engine.step()
            steps.append(_time_steps(engine))
            hosts.append(_time_host(engine))
            parts.append(_profile(engine, scopes))
            engine.end()
        attention, rest = zip(*parts[1:], strict=True)
        spreads = map(Spread.of, (steps[1:], hosts[1:], attention, rest))
        results.append(ContextResult(context, *spreads))
    return results


def _time_steps(engine: Engine) -> float:
    start = time.perf_counter()
    for _ in range(ROUNDS):
        engine.step()
    return (time.perf_counter() - start) / ROUNDS


def _time_host(engine: Engine) -> float:
    """Return the median CPU seconds of this thread in a step."""
    times = []
    for _ in range(ROUNDS):
        _fill_caches()
        start = time.thread_time()
        engine.step()
        times.append(time.thread_time() - start)
    return median(times)


def _fill_caches() -> None:
    np.ones(CACHE_BYTES, np.uint8).sum()


def _profile(engine: Engine, scopes: Mapping[str, str]) -> tuple[float, float]:
    """Return seconds per round of attention over the cache, and of all other operations."""

    def run() -> None:
        for _ in range(PROFILED):
            _fill_caches()
            engine.step()

    attention = rest = 0.0
    for plane in profile_of(run).planes:
        for line in plane.lines:
            events = (Event(e.name, e.start_ns, e.duration_ns) for e in line.events)
            of_line = split_time((e for e in events if e.name in scopes), scopes)
            attention, rest = attention + of_line[0], rest + of_line[1]
    return attention / PROFILED / 1e9, rest / PROFILED / 1e9


def split_time(events: Iterable[Event], scopes: Mapping[str, str]) -> tuple[float, float]:
    """Return nanoseconds of attention over the cache, nested events included, and of the rest."""
    attention = whole = attention_end = whole_end = 0.0
    for event in sorted(events, key=lambda e: (e.start, -e.duration)):
        if event.start >= whole_end:
            whole, whole_end = whole + event.duration, event.start + event.duration
        if scopes[event.name] == SCOPES["mla_decode"] and event.start >= attention_end:
            attention += event.duration
            attention_end = event.start + event.duration
    return attention, whole - attention
