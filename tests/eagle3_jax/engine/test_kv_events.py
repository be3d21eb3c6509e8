"""Events say all that a copy of the prefix index needs, in the order in which it changed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_index import IndexCopy
from simulated_device import VOCAB, simulated_pair

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import (
    AllCleared,
    KVEventLog,
    Medium,
    PagesRemoved,
    PagesStored,
)
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.prefix_cache import PrefixCache
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams

STEMS = [[(7 * i * i + j) % VOCAB for i in range(14)] for j in range(2)]
SALTS = ("", "mine", "\ud800")


@st.composite
def prompts(draw: st.DrawFn) -> list[int]:
    """Beginnings of two stems, so that pages are found, taken twice, and parted at their ends."""
    stem = draw(st.sampled_from(STEMS))
    tail = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3))
    return [*stem[: draw(st.integers(0, len(stem)))], *tail]


@st.composite
def traffic(draw: st.DrawFn) -> dict[str, Any]:
    """Requests by the step they arrive at; what else happens by step."""
    requests = [
        Request(
            f"{i}",
            draw(prompts()),
            SamplingParams(max_tokens=draw(st.integers(1, 14)), seed=i, ignore_eos=True),
            draw(st.sampled_from(SALTS)),
        )
        for i in range(draw(st.integers(1, 12)))
    ]
    steps, names = st.integers(0, 40), st.sampled_from([r.request_id for r in requests])
    page_size = draw(st.sampled_from([1, 2, 4]))
    pages_per_seq = -(-34 // page_size)
    config = EngineConfig(
        num_speculative_tokens=draw(st.integers(0, 3)),
        max_model_len=34,
        max_num_seqs=draw(st.integers(1, 4)),
        page_size=page_size,
        num_pages=1 + pages_per_seq + draw(st.integers(0, pages_per_seq // 2)),
        prefill_chunk=draw(st.integers(2, 8)),
        exact=draw(st.booleans()),
    )
    return {
        "config": config,
        "arrivals": [(request, draw(steps)) for request in requests],
        "cancels": draw(st.dictionaries(steps, names, max_size=3)),
        "spoils": draw(st.sets(steps, max_size=2)),
        "resets": draw(st.sets(steps, max_size=3)),
        "asked": draw(st.lists(prompts(), max_size=4)),
    }


def known(engine: Engine, prompt: list[int], salt: str) -> int:
    """How many pages the engine itself would find."""
    scheduler, size = engine._replicas.first, engine.config.page_tokens
    sequence = Sequence.of(Request("ask", prompt, SamplingParams(), salt), (), 34, None)
    keys = scheduler.prefixes._keys(sequence, (len(prompt) - 1) // size)
    return scheduler.pages.count_known(keys)


def disturb(engine: Engine, case: dict[str, Any], step: int) -> None:
    """What else happens before this step."""
    if step in case["cancels"]:
        engine.cancel(case["cancels"][step])
    if step in case["resets"]:
        engine.reset_prefix_cache()
    if step in case["spoils"] and engine._replicas.first.admitted:
        engine._replicas.first.pages.forget(engine._replicas.first.admitted[0].pages)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(traffic())
def test_a_copy_made_from_events_finds_for_every_prompt_what_the_engine_finds(
    case: dict[str, Any],
) -> None:
    """After every step, whatever is evicted, preempted, cancelled, spoiled and reset."""
    log, copy = KVEventLog(), IndexCopy()
    with pytest.MonkeyPatch.context() as monkeypatch:
        target, draft = simulated_pair(monkeypatch)
        engine = Engine(target, draft, case["config"], kv_events=log)
    arrivals, step = list(case["arrivals"]), 0
    while arrivals or engine.has_work or step < 41:
        for request, when in [each for each in arrivals if each[1] <= step]:
            engine.add(request)
            arrivals.remove((request, when))
        disturb(engine, case, step)
        engine.step()
        copy.replay(log.take())
        assert copy.places == {("GPU", key) for key in engine._replicas.first.pages._page_of}
        step += 1
        assert step < 2000
    size = engine.config.page_tokens
    for prompt in [*case["asked"], *(request.prompt_ids for request, _ in case["arrivals"])]:
        for salt in SALTS:
            assert copy.pages_found(prompt, size, salt) == known(engine, prompt, salt)


def filled(events: KVEventLog, salt: str = "") -> tuple[PagePool, PrefixCache, Sequence]:
    """A pool of three pages of 4 tokens, all held by one sequence of 13 tokens."""
    config, pages = EngineConfig(page_size=4, max_model_len=16), PagePool(4, events)
    request = Request("a", list(range(13)), SamplingParams(), salt)
    sequence = Sequence.of(request, (), 16, None)
    sequence.pages.extend(pages.take(3) or [])
    return pages, PrefixCache(pages, config, events=events), sequence


def test_pages_are_described_by_their_tokens_and_the_one_after_them() -> None:
    log = KVEventLog()
    _, cache, sequence = filled(log, "mine")
    cache.publish(sequence, 12)
    keys = tuple(sequence.page_keys)
    assert log.take() == [
        PagesStored(keys, None, tuple(range(12)), (4, 8, 12), 4, "mine", "GPU"),
    ]
    assert log.take() == []


def test_pages_that_are_there_already_are_not_stored_again() -> None:
    """The middle one is another sequence's: the runs around it are events of their own."""
    log = KVEventLog()
    pages, cache, sequence = filled(log)
    first, middle, last = cache._keys(sequence, 3)
    pages._page_of[middle] = 99
    cache.publish(sequence, 12)
    assert log.take() == [
        PagesStored((first,), None, (0, 1, 2, 3), (4,), 4, "", "GPU"),
        PagesStored((last,), middle, (8, 9, 10, 11), (12,), 4, "", "GPU"),
    ]


def test_evictions_forgetting_and_resets_are_told_in_their_order() -> None:
    log = KVEventLog()
    pages, cache, sequence = filled(log)
    cache.publish(sequence, 12)
    first, middle, last = sequence.page_keys
    log.take()
    pages.forget(sequence.pages[:1])
    pages.give_back(sequence.pages)
    pages.take(2)
    pages.forget_all()
    assert log.take() == [
        PagesRemoved((first,), "GPU"),
        PagesRemoved((last,), "GPU"),
        AllCleared(),
    ]
    assert pages.count_known([middle]) == 0


def test_pages_that_move_are_described_by_their_keys_as_long_as_some_medium_has_them() -> None:
    log = KVEventLog()
    pages, cache, sequence = filled(log, "mine")
    cache.publish(sequence, 12)
    first, middle, last = sequence.page_keys
    for key in (first, middle):
        log.copied(key, "CPU")
    pages.give_back(sequence.pages)
    pages.take(3)
    log.take()
    log.copied(middle, "GPU")
    log.copied(first, "STORAGE")
    log.copied(last, "STORAGE")
    assert log.take() == [
        PagesStored((middle,), first, (4, 5, 6, 7), (8,), 4, "mine", "GPU"),
        PagesStored((first,), None, (0, 1, 2, 3), (4,), 4, "mine", "STORAGE"),
        PagesStored((last,), None, (), (), 0, "", "STORAGE"),
    ]
    gone: list[tuple[bytes, Medium]] = [(first, "CPU"), (first, "STORAGE"), (middle, "CPU")]
    for key, medium in [*gone, (middle, "GPU")]:
        log.removed(key, medium)
    assert log.take()[-1] == PagesRemoved((middle,), "GPU")
    assert not log._pages
