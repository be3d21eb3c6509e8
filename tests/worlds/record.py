"""The traffic of a world, run once, with all data that the laws need."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import jax
import numpy as np
import pytest
from driving import Answer, drive
from kv_index import IndexCopy, places_in
from poison import Poison
from traffic import Run, drive_waves
from world import World

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.stats import EngineStats

Found = TypeVar("Found")
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"
STEADY = 8
"""Requests in the passes that are repeated."""


@dataclass
class Compilations:
    """Counts XLA compilations while it is listening."""

    count: int = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        def hear(event: str, duration_secs: float, **_: object) -> None:
            self.count += event == COMPILE_EVENT

        jax.monitoring.register_event_duration_secs_listener(hear)
        yield
        jax.monitoring.unregister_event_duration_listener(hear)


@dataclass
class Pass:
    """Steady traffic on an empty cache: answers, and counters before and after."""

    answers: dict[str, Answer]
    before: EngineStats
    after: EngineStats
    programs: int
    compilations: int

    @property
    def rounds(self) -> dict[str, tuple[list[int], list[int]]]:
        """Tokens and accepted counts; stale rows of the draft's cache show in the latter."""
        return {name: (a.token_ids, a.accepted) for name, a in self.answers.items()}


@dataclass
class Record:
    """Traffic of one engine: `wild` (random waves, some cancelled) and `steady` (long answers).

    `spoiled` is `steady` with NaN in all rows that no program may read; `leaks` are resources still
    held after a pass.
    """

    world: World
    engine: Engine
    requests: list[Request]
    log: KVEventLog | None
    copy: IndexCopy = field(default_factory=IndexCopy)
    leaks: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, world: World, count: int) -> "Record":
        """Create the world's engine and requests without running them."""
        log = KVEventLog() if world.config.data_parallel_size == 1 else None
        requests = world.requests(np.random.default_rng(1), count)
        return cls(world, world.engine(log), requests, log)

    @cached_property
    def plain(self) -> dict[str, Answer]:
        return self.world.plain(self.requests)

    @cached_property
    def wild(self) -> Run:
        return self._ended(
            lambda: drive_waves(self.engine, self.requests, np.random.default_rng(2))
        )

    @cached_property
    def wild_stats(self) -> EngineStats:
        """Counters after the wild pass, which is the first."""
        _ = self.wild
        return self.engine.stats()

    @cached_property
    def steady(self) -> Pass:
        """On one device no array moves between it and the host by itself."""
        _ = self.wild_stats
        with jax.transfer_guard("disallow" if self.world.program == "tiny" else "allow"):
            return self._pass()

    @cached_property
    def spoiled(self) -> Pass:
        _ = self.steady
        with pytest.MonkeyPatch.context() as patch:
            poison = Poison(patch, self.engine)
            found = self._pass()
        assert poison.rows > 0
        return found

    def _pass(self) -> Pass:
        requests = [
            replace(r, sampling=replace(r.sampling, stop=())) for r in self.requests[:STEADY]
        ]
        assert self.engine.reset_prefix_cache()
        before, compiled = self.engine.stats(), self.engine._runner.executor.compiled
        known, compilations = len(compiled), Compilations()
        with compilations.heard():
            answers = self._ended(lambda: drive(self.engine, requests))
        new = len(compiled) - known
        return Pass(answers, before, self.engine.stats(), new, compilations.count)

    def _ended(self, run: Callable[[], Found]) -> Found:
        """Run a pass, note leaks, and update the index copy."""
        self.world.prepare(self.engine)
        found = run()
        self.leaks += held(self.engine)
        if self.log is not None:
            self.copy.replay(self.log.drain())
        return found

    @property
    def places(self) -> tuple[set[object], set[object]]:
        """Keys by medium: from events, and from the engine."""
        return {*self.copy.places}, {*places_in(self.engine)}


def held(engine: Engine) -> list[str]:
    """Return the resources that an idle engine still holds."""
    found: list[str] = []
    if engine._sequences or engine._in_flight or engine.has_work:
        found.append("requests or rounds in flight")
    for scheduler in engine._replicas.schedulers:
        pages, slots = scheduler.pages, scheduler.config.max_num_seqs
        if pages.free != pages.total:
            found.append(f"{pages.total - pages.free} pages")
        if len({*scheduler._free_slots}) != slots or scheduler.admitted or scheduler.waiting:
            found.append("slots or queued requests")
        if scheduler.has_copies or (scheduler.tier is not None and scheduler.tier._holds.total()):
            found.append("copies of pages")
    return found
