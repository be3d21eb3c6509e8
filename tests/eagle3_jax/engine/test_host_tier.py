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
from tiny import VOCAB, tiny_draft, tiny_target

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import KVEventLog, PagesRemoved, PagesStored
from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.engine.page_tiers import NO_TOKENS, TokensByTier
from eagle3_jax.sampling.params import SamplingParams

ROOM = 10_000_000
PAGE_TOKENS = 4


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
    stats, tier = engine.stats(), engine._replicas.first.tier
    assert stats.free_pages == stats.total_pages
    assert not engine._replicas.first.has_copies
    assert isinstance(tier, HostTier)
    media = {"GPU": {*engine._replicas.first.pages._page_of}, "CPU": {*tier._slot_of}}
    assert media_of(log) == media | {"STORAGE": set()}
    for request in case["requests"]:
        answer = answers[request.request_id]
        tokens, *_ = plain_answer(request, config)
        assert answer.token_ids == tokens[: len(answer.token_ids)]
        assert answer.finish[0] == "abort" or answer.token_ids == tokens


def media_of(log: KVEventLog) -> dict[str, set[bytes]]:
    """The keys that each medium has, by the events alone; no page is where it was before."""
    found: dict[str, set[bytes]] = {"GPU": set(), "CPU": set(), "STORAGE": set()}
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


def asked(users: range, salted: int) -> list[Request]:
    """A prompt of each, greedy and sampled; the last `salted` users have a salt."""
    return [
        Request(
            f"{user}",
            [(7 * user + 3 * j * j) % VOCAB for j in range(42)] + [user],
            SamplingParams(temperature=0.7 * (user % 2), seed=user, max_tokens=20),
            cache_salt=f"of {user}" if user >= users.stop - salted else "",
        )
        for user in users
    ]


def on_two_devices() -> tuple[Any, Any]:
    return pair_on_devices(Setup(2, False, "latent", "float32", True))


def with_draft(make_draft: Any) -> Any:
    target = tiny_target()
    return target, make_draft(target)


EXACT = {"exact": True, "kv_cache_dtype": "fp8", "kv_cache_scale": 0.05}
DIVIDED = {"decode_context_parallel_size": 2, "page_size": 2}


@pytest.mark.parametrize(
    ("make_pair", "fields"),
    [
        (lambda: with_draft(tiny_draft), {}),
        (on_two_devices, EXACT | DIVIDED),
    ],
    ids=["MHA", "exact, float8, context of two devices"],
)
def test_answers_and_accepted_drafts_do_not_depend_on_where_a_prompt_lies(
    make_pair: Any, fields: dict[str, Any]
) -> None:
    """Nowhere, on the devices, in the host's memory; every other request has a salt."""
    target, draft = make_pair()
    engine = Engine(target, draft, sizes(3, kv_offloading_bytes=ROOM, **fields))
    first, others = asked(range(2), salted=1), asked(range(2, 10), salted=4)
    found = [
        [drive(engine, [request])[request.request_id] for request in turn]
        for turn in (first, first, others, first)
    ]
    # Behind these rounds it depends on what the host has read whether there is room for drafts.
    told = [[(a.token_ids, a.accepted[:4]) for a in answers] for answers in found]
    assert told[0] == told[1] == told[3]
    lay = [{a.outputs[-1].cached for a in answers} for answers in found]
    unit = 8 if fields else PAGE_TOKENS
    whole = 42 // unit * unit
    assert lay[0] == lay[2] == {NO_TOKENS}
    assert lay[1] == {TokensByTier(device=whole)} and lay[3] == {TokensByTier(host=whole)}


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


def test_an_answer_says_which_of_its_tokens_came_from_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = EngineConfig(0, 64, 2, 4, num_pages=18, prefill_chunk=8, kv_offloading_bytes=200)
    engine = simulated_engine(monkeypatch, config, with_draft=False)
    prompt = Request("a", [*range(16), 3], SamplingParams(max_tokens=1))
    others = [Request(f"{i}", [i] * 12, SamplingParams(max_tokens=50)) for i in range(1, 9)]
    found = [drive(engine, asked) for asked in ([prompt], [prompt], others, [prompt])]
    tiers = [answers["a"].outputs[-1].cached for answers in (found[0], found[1], found[3])]
    assert [tuple(tokens) for tokens in tiers] == [(0, 0, 0, 0), (16, 0, 0, 0), (0, 16, 0, 0)]
    stats = engine.stats()
    assert stats.cached.host == 16 and stats.prefix_cache_hits == stats.cached.total
    (room,) = stats.tiers
    assert room.tier == "host" and 0 < room.pages <= room.total
