"""Events tell exactly which pages the devices, the host's memory and a disk have."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_index import IndexCopy, places_in
from simulated_device import SimulatedRunner, simulated_pair
from test_kv_events import SALTS, traffic

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams

SIZE = 4096
"""Bytes of a page, of which the simulated device's need fewer."""


def disturb(engine: Engine, case: dict[str, Any], step: int) -> None:
    """What else happens before this step."""
    scheduler = engine._replicas.first
    if step in case["cancels"]:
        engine.cancel(case["cancels"][step])
    if step in case["resets"]:
        engine.reset_prefix_cache()
    if step in case["spoils"] and scheduler.admitted:
        pages = scheduler.admitted[0].pages
        scheduler._forget_below(scheduler.pages.keys_of(pages))
        scheduler.pages.forget(pages)


def run(engine: Engine, case: dict[str, Any], log: KVEventLog, copy: IndexCopy) -> None:
    """The traffic to its end; after every step the copy has what the engine has."""
    arrivals, step = list(case["arrivals"]), 0
    while arrivals or engine.has_work or step < 41:
        for request, when in [each for each in arrivals if each[1] <= step]:
            engine.add(request)
            arrivals.remove((request, when))
        disturb(engine, case, step)
        engine.step()
        copy.replay(log.take())
        assert copy.places == places_in(engine)
        step += 1
        assert step < 20_000


def assert_finds_the_same(engine: Engine, copy: IndexCopy, prompt: list[int], salt: str) -> None:
    """In each medium alone, and in all of them together."""
    scheduler, size = engine._replicas.first, engine.config.page_tokens
    sequence = Sequence.of(Request("ask", prompt, SamplingParams(), salt), (), 34, None)
    keys = scheduler.prefixes._keys(sequence, (len(prompt) - 1) // size)
    by_medium = {
        "GPU": scheduler.pages.count_known(keys),
        "CPU": scheduler.tier.match(keys) if scheduler.tier else 0,
        "STORAGE": scheduler.disk.match(keys) if scheduler.disk else 0,
    }
    found = {medium: copy.pages_found(prompt, size, salt, {medium}) for medium in by_medium}
    assert found == by_medium
    there = {key for _, key in places_in(engine)}
    every = next((i for i, key in enumerate(keys) if key not in there), len(keys))
    assert copy.pages_found(prompt, size, salt) == every


@settings(max_examples=40, deadline=None, derandomize=True)
@given(traffic(), st.integers(1, 24), st.integers(1, 24), st.integers(0, 6))
def test_a_copy_made_from_events_has_what_each_tier_has(
    tmp_path_factory: pytest.TempPathFactory,
    case: dict[str, Any],
    slots: int,
    files: int,
    copy_steps: int,
) -> None:
    """After every step of traffic with evictions from each tier, preemption, cancels, spoiled rows
    and resets; and finds for every prompt and salt what the engine finds there."""
    directory: Path = tmp_path_factory.mktemp("pages")
    config: EngineConfig = replace(
        case["config"],
        kv_offloading_bytes=slots * SIZE,
        kv_offloading_dir=str(directory),
        kv_offloading_dir_bytes=files * 2 * SIZE,
    )
    log, copy = KVEventLog(), IndexCopy()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(SimulatedRunner, "copy_steps", copy_steps)
        monkeypatch.setattr(SimulatedRunner, "page_bytes", SIZE)
        monkeypatch.setattr("eagle3_jax.engine.engine.BETWEEN_LOOKS_S", 0.0001)
        engine = Engine(*simulated_pair(monkeypatch), config, kv_events=log)
        run(engine, case, log, copy)
    for prompt in [*case["asked"], *(request.prompt_ids for request, _ in case["arrivals"])]:
        for salt in SALTS:
            assert_finds_the_same(engine, copy, prompt, salt)
    engine.close()
