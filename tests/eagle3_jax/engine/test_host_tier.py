"""Pages that go down to the host's memory and come back.

On the simulated device, which checks every row, and through whole engines.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from driving import drive, sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from setups import Setup, pair_on_devices
from simulated_device import SimulatedRunner, plain_answer, simulated_engine, simulated_pair
from test_shared_prefixes import prefilled, traffic
from tiny import VOCAB, latent_draft, tiny_draft, tiny_target

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import KVEventLog, PagesRemoved, PagesStored
from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.sampling.params import SamplingParams

ROOM = 10_000_000
USERS, TURNS, PAGE_TOKENS = 8, 3, 4


@settings(max_examples=150, deadline=None, derandomize=True)
@given(traffic(), st.integers(1, 40), st.integers(0, 30))
def test_a_tier_changes_no_answer_and_every_load_ends(
    case: dict[str, Any], slots: int, copy_steps: int
) -> None:
    """Whatever fits into it and however slow it is; `drive` gives up on an engine that waits."""
    config = replace(case["config"], enable_prefix_caching=True, kv_offloading_bytes=slots)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(SimulatedRunner, "copy_steps", copy_steps)
        monkeypatch.setattr("eagle3_jax.engine.engine.BETWEEN_LOOKS_S", 0)
        target, draft = simulated_pair(monkeypatch)
        log = KVEventLog()
        engine = Engine(target, draft if case["with_draft"] else None, config, kv_events=log)
        answers = drive(
            engine, case["requests"], arrival_gap=case["arrival_gap"], cancel_at=case["cancel_at"]
        )
    stats, tier = engine.stats(), engine._scheduler.tier
    assert stats.free_pages == stats.total_pages
    assert not engine._scheduler.has_copies
    assert isinstance(tier, HostTier)
    assert media_of(log) == {"GPU": {*engine._scheduler.pages._page_of}, "CPU": {*tier._slot_of}}
    for request in case["requests"]:
        answer = answers[request.request_id]
        tokens, *_ = plain_answer(request, config)
        assert answer.token_ids == tokens[: len(answer.token_ids)]
        assert answer.finish[0] == "abort" or answer.token_ids == tokens


def media_of(log: KVEventLog) -> dict[str, set[bytes]]:
    """The keys that each medium has, by the events alone; no page is where it was before."""
    found: dict[str, set[bytes]] = {"GPU": set(), "CPU": set()}
    for event in log.take():
        assert isinstance(event, PagesStored | PagesRemoved)
        keys, medium = {*event.keys}, found[event.medium]
        if isinstance(event, PagesStored):
            assert not keys & medium
            medium |= keys
        else:
            assert keys <= medium
            medium -= keys
    return found


def turn(number: int) -> list[Request]:
    """Of all users, each prompt begins with the user's one before."""
    return [
        Request(
            f"{user}-{number}",
            [(7 * user + 3 * j * j) % VOCAB for j in range(30)] + [user, number] * number,
            SamplingParams(temperature=0.7 * (user % 2), seed=user, max_tokens=12),
        )
        for user in range(USERS)
    ]


def served(engine: Engine) -> dict[str, tuple[list[int], list[int]]]:
    """Tokens and accepted drafts of each request of all turns."""
    found = [drive(engine, turn(number)) for number in range(TURNS)]
    return {n: (a.token_ids, a.accepted) for answers in found for n, a in answers.items()}


@pytest.mark.parametrize("make_draft", [tiny_draft, latent_draft])
def test_what_comes_back_is_found_as_in_an_unlimited_cache(make_draft: Any) -> None:
    """Tokens, accepted drafts and hits; the cache holds a quarter of the turns."""
    target = tiny_target()
    draft = make_draft(target)
    engines = [
        Engine(target, draft, sizes(3, num_pages=pages, kv_offloading_bytes=room))
        for pages, room in ((400, 0), (28, ROOM), (28, 0))
    ]
    unlimited, tiered, small = map(served, engines)
    assert tiered == unlimited == small
    hits = [engine.stats().prefix_cache_hits for engine in engines]
    assert hits[1] == hits[0] > 2 * hits[2]


def test_a_slow_copy_delays_no_other_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one request's pages are on their way each step advances the other."""
    config = EngineConfig(0, 64, 2, 4, num_pages=33, prefill_chunk=8, kv_offloading_bytes=200)
    engine = simulated_engine(monkeypatch, config, with_draft=False)
    prompt, others = [*range(16), 3], [[i] * 12 for i in range(1, 9)]
    drive(engine, [Request("a", prompt, SamplingParams(max_tokens=1))])
    drive(engine, [Request(f"{i}", p, SamplingParams(max_tokens=50)) for i, p in enumerate(others)])
    monkeypatch.setattr(SimulatedRunner, "copy_steps", 30)
    engine.add(Request("long", [5], SamplingParams(max_tokens=60, seed=1)))
    engine.step()
    engine.add(Request("again", prompt, SamplingParams(max_tokens=1)))
    before = prefilled(engine)
    told = [[output.request_id for output in engine.step()] for _ in range(25)]
    assert told == [["long"]] * 25
    while engine.has_work:
        engine.step()
    assert prefilled(engine) - before == 1, "all but the last token came from the tier"


SETUPS = [
    (None, 1),
    (Setup(4, False, "latent", "float32", True), 1),
    (Setup(4, False, "grouped", "float32", True), 2),
    (Setup(4, True, "latent", "float32", False), 4),
]


@pytest.mark.parametrize(("setup", "parts"), SETUPS, ids=str)
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_pages_come_back_bit_by_bit(setup: Setup | None, parts: int, dtype: str) -> None:
    """From devices that hold the same rows, parts of them or their heads."""
    target = tiny_target()
    pair = (target, tiny_draft(target)) if setup is None else pair_on_devices(setup)
    scale = 0.05 if dtype == "fp8" else None
    fields = {"decode_context_parallel_size": parts, "page_size": PAGE_TOKENS // parts}
    kept = {"kv_cache_dtype": dtype, "kv_cache_scale": scale, "kv_offloading_bytes": ROOM}
    engine = Engine(*pair, sizes(3, **kept, **fields))
    runner, pages, slots = engine._runner, [3, 1, 6], [5, 0, 2]
    state = runner.executor.state = jax.tree.map(_noise, runner.executor.state)
    before = _held(state)
    runner.save_pages(pages, slots)
    runner.executor.state = jax.tree.map(_nothing, runner.executor.state)
    runner.stage_pages(slots)
    runner.load_pages(pages[::-1], slots[::-1])
    for old, new in zip(before, _held(runner.executor.state), strict=True):
        assert np.array_equal(old[pages], new[pages])
        others = [page for page in range(1, len(old)) if page not in pages]
        assert not new[others].any()


def _noise(x: Any) -> Any:
    """Other values in every element of a pool; devices that have the same rows hold the same."""
    if x.ndim < 3 or x.dtype == bool:
        return x
    shape = (x.shape[0], PAGE_TOKENS, *x.shape[2:])
    drawn = np.random.default_rng(x.size).normal(size=shape).astype(x.dtype)
    return jax.device_put(np.concatenate([drawn] * (x.shape[1] // PAGE_TOKENS), axis=1), x.sharding)


def _nothing(x: Any) -> Any:
    return jax.device_put(np.zeros(x.shape, x.dtype), x.sharding)


def _held(state: Any) -> list[np.ndarray]:
    """Every pool's bytes, those of all devices."""
    pools = [x for x in jax.tree.leaves((state.target_pools, state.draft_pools)) if x.ndim > 1]
    return [np.asarray(pool).view(np.uint8) for pool in pools]
