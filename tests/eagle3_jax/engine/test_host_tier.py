"""Pages that go down to the host's memory and come back.

On the simulated device, which checks every row, and through whole engines.
"""

from typing import Any

import jax
import numpy as np
import pytest
from driving import drive, sizes
from setups import Setup, pair_on_devices
from simulated_device import (
    SimulatedRunner,
    plain_answer,
    prefilled,
    simulated_engine,
    simulated_pair,
)
from sweeps import sweep
from tiny import tiny_draft, tiny_target

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams

ROOM = 10_000_000
PAGE_TOKENS = 4


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
    ("auto", None, 1),
    ("fp8", Setup(4, False, "grouped", "float32", True), 2),
    ("fp8", None, 1),
    ("auto", Setup(4, False, "latent", "float32", True), 1),
    ("auto", Setup(4, True, "latent", "float32", False), 4),
]


@pytest.mark.parametrize(("dtype", "setup", "parts"), sweep(SETUPS, SETUPS[:2]), ids=str)
def test_pages_come_back_bit_by_bit(dtype: str, setup: Setup | None, parts: int) -> None:
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


def run_again(monkeypatch: pytest.MonkeyPatch, kv_offloading_bytes: int) -> tuple[int, int]:
    """Tokens that went through prefills again, and preemptions, of four whose answers outgrow the
    pool."""
    config = EngineConfig(
        3, 100, 4, 4, num_pages=27, prefill_chunk=8, kv_offloading_bytes=kv_offloading_bytes
    )
    requests = [
        Request(f"{user}", [user, *range(16)], SamplingParams(max_tokens=80, seed=user))
        for user in range(4)
    ]
    monkeypatch.setattr("eagle3_jax.engine.engine.BETWEEN_LOOKS_S", 0)
    engine = Engine(*simulated_pair(monkeypatch), config)
    answers = drive(engine, requests)
    for request in requests:
        assert answers[request.request_id].token_ids == plain_answer(request, config)[0]
    assert engine._replicas.first.pages.num_lost == 0
    return prefilled(engine) - 4 * 17, engine.stats().num_preemptions


def test_a_preempted_sequence_comes_back_from_the_hosts_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs again what was in no full page, and the last round."""
    least, preemptions = run_again(monkeypatch, kv_offloading_bytes=100)
    assert 0 < least <= preemptions * (4 + 2 * (3 + 1))
    most, preemptions = run_again(monkeypatch, kv_offloading_bytes=0)
    assert most > preemptions * (4 + 2 * (3 + 1))
