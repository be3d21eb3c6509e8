"""Random traffic through the real engine on a simulated device that checks every cache row.

One generator for all of it: prompts that begin alike, every rule of ending, cancels, preemption,
resets of the cache, spoiled pages, and pages kept in the host's memory or in a directory.
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from driving import Answer, drive
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_index import IndexCopy, places_in
from simulated_device import VOCAB, SimulatedRunner, plain_answer, prefilled, simulated_engine
from toy_tokenizer import ToyTokenizer

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.scheduler import Scheduler
from eagle3_jax.engine.sequence import Sequence, Status
from eagle3_jax.sampling.params import SamplingParams

EOS, TOKENIZER = (3,), ToyTokenizer()
NO_SLOTS = st.just(0)
STEM = [5, 9, 2, 14, 7, 7, 1, 12, 3, 16, 0, 8, 4, 11, 6, 10, 13]
STEMS = [STEM, STEM[:9] + STEM[::-1], [1] * 20]
SALTS = ("", "mine", "\ud800")
SIZE = 4096
"""Bytes of a page, of which the simulated device's need fewer."""
LOADS = {"all of several slots", "a part of what is asked for", "one that is cancelled"}
"""States that an engine is to be met in while pages are on their way."""


@dataclass(frozen=True)
class Case:
    """Traffic of one engine. Steps of cancels are by request id; copy_steps: looks a copy takes."""

    config: EngineConfig
    requests: list[Request]
    with_draft: bool
    arrival_gap: int
    cancel_at: dict[str, int]
    spoils: set[int]
    copy_steps: int


@st.composite
def sampling(draw: st.DrawFn) -> SamplingParams:
    stop = draw(st.lists(st.sampled_from(["ab", "c", "é", "aab", "中a"]), max_size=2, unique=True))
    most = draw(st.integers(1, 20) | st.none())
    return SamplingParams(
        max_tokens=most,
        min_tokens=draw(st.integers(0, min(most or 6, 6))),
        seed=draw(st.integers(0, 9)),
        stop=stop,
        stop_token_ids=draw(st.lists(st.integers(0, VOCAB - 1), max_size=1)),
        ignore_eos=draw(st.booleans()),
        include_stop_str_in_output=draw(st.booleans()),
    )


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Prompts of a common stem's beginning and a tail, some of them twice."""
    tails = st.lists(st.integers(0, VOCAB - 1), max_size=4)
    prompts = [
        draw(st.sampled_from(STEMS))[: draw(st.integers(1, 17))] + draw(tails)
        for _ in range(draw(st.integers(1, 5)))
    ]
    prompts += draw(st.lists(st.sampled_from(prompts), max_size=3))
    salts, clients = st.sampled_from(SALTS), st.sampled_from("aab")
    return [
        Request(f"{i}", prompt, draw(sampling()), draw(salts), client=draw(clients))
        for i, prompt in enumerate(prompts)
    ]


@st.composite
def traffic(draw: st.DrawFn, host_slots: st.SearchStrategy[int] = NO_SLOTS) -> Case:
    """Pages for one full sequence or a few more; so many slots in the host's memory."""
    max_model_len, page_size = draw(st.integers(22, 40)), draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    pages_per_seq, asked = -(-max_model_len // page_size), draw(requests())
    config = EngineConfig(
        num_speculative_tokens=draw(st.integers(0, 4)),
        max_model_len=max_model_len,
        max_num_seqs=draw(st.integers(1, 4)),
        page_size=page_size,
        num_pages=1 + pages_per_seq + draw(st.integers(0, 2 * pages_per_seq)),
        prefill_chunk=draw(st.integers(1, 8)),
        exact=draw(st.booleans()),
        kv_offloading_bytes=draw(host_slots) * SIZE,
    )
    if not config.kv_offloading_bytes:
        cached = draw(st.sampled_from([True, True, True, False]))
        config = replace(config, enable_prefix_caching=cached)
    names, steps = st.sampled_from([request.request_id for request in asked]), st.integers(0, 12)
    return Case(
        config,
        asked,
        with_draft=draw(st.booleans()),
        arrival_gap=draw(st.integers(0, 4)),
        cancel_at=draw(st.dictionaries(names, steps, max_size=3)),
        spoils=draw(st.sets(steps, max_size=2)),
        copy_steps=draw(st.integers(0, 30)),
    )


class Driven:
    """An engine, and a copy of its index that is made of events alone."""

    def __init__(self, case: Case, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(SimulatedRunner, "copy_steps", case.copy_steps)
        patch.setattr(SimulatedRunner, "page_bytes", SIZE)
        between_looks = 0.0001 if case.config.kv_offloading_dir else 0
        patch.setattr("eagle3_jax.engine.engine.BETWEEN_LOOKS_S", between_looks)
        self.case, self.log, self.copy = case, KVEventLog(), IndexCopy()
        given: Any = {"eos": EOS, "tokenizer": TOKENIZER, "kv_events": self.log}
        self.engine = simulated_engine(patch, case.config, with_draft=case.with_draft, **given)

    def run(self, arrival_gap: int) -> dict[str, Answer]:
        """Runs the traffic; `drive` gives up on an engine that waits for ever."""
        case = self.case
        answers = drive(
            self.engine,
            case.requests,
            arrival_gap=arrival_gap,
            cancel_at=case.cancel_at,
            before_step=self._disturb,
        )
        self._compare()
        return answers

    def _disturb(self, step: int) -> None:
        """Compares what the last step left, then spoils a sequence's pages."""
        self._compare()
        scheduler = self.engine._replicas.first
        if step in self.case.spoils and scheduler.admitted:
            pages = scheduler.admitted[0].pages
            scheduler._forget_below(scheduler.pages.keys_of(pages))
            scheduler.pages.forget(pages)

    def _compare(self) -> None:
        self.copy.replay(self.log.drain())
        assert self.copy.places == places_in(self.engine)

    def reset(self) -> None:
        """Forgets what pages contain, and tells so."""
        assert self.engine.reset_prefix_cache()
        self._compare()
        assert not self.copy.places

    def assert_idle(self) -> None:
        """No page, slot, copy or hold is left."""
        stats, scheduler = self.engine.stats(), self.engine._replicas.first
        assert stats.free_pages == stats.total_pages
        assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0)
        assert not scheduler.has_copies
        assert scheduler.tier is None or not scheduler.tier._holds.total()

    def assert_copy_finds_the_same(self) -> None:
        """For every prompt and salt, what the engine finds."""
        for prompt in [request.prompt_ids for request in self.case.requests]:
            for salt in SALTS:
                self._assert_finds_the_same(prompt, salt)

    def _assert_finds_the_same(self, prompt: list[int], salt: str) -> None:
        """In each medium alone, and in all of them together."""
        scheduler, size = self.engine._replicas.first, self.engine.config.page_tokens
        sequence = Sequence.of(Request("ask", prompt, SamplingParams(), salt), (), 64, None)
        keys = scheduler.prefixes._keys(sequence, (len(prompt) - 1) // size)
        by_medium = {
            "GPU": scheduler.pages.count_known(keys),
            "CPU": scheduler.tier.match(keys) if scheduler.tier else 0,
            "STORAGE": scheduler.disk.match(keys) if scheduler.disk else 0,
        }
        found = {m: self.copy.pages_found(prompt, size, salt, {m}) for m in by_medium}
        assert found == by_medium
        there = {key for _, key in places_in(self.engine)}
        every = next((i for i, key in enumerate(keys) if key not in there), len(keys))
        assert self.copy.pages_found(prompt, size, salt) == every


def assert_plain(case: Case, answers: dict[str, Answer]) -> None:
    """Tokens, text and finish are the plain ones; a cancelled answer is the beginning of one."""
    for request in case.requests:
        answer = answers[request.request_id]
        tokens, text, *finish = plain_answer(request, case.config, EOS, TOKENIZER)
        if answer.finish[0] == "abort":
            assert request.request_id in case.cancel_at
            unstopped = replace(request, sampling=replace(request.sampling, stop=()))
            sampled, *_ = plain_answer(unstopped, case.config, EOS, TOKENIZER)
            assert answer.token_ids == sampled[: len(answer.token_ids)]
            assert answer.text == TOKENIZER.decode(answer.token_ids)
        else:
            assert (answer.token_ids, answer.text) == (tokens, text)
            assert list(answer.finish) == finish


def assert_found(driven: Driven, answers: dict[str, Answer]) -> None:
    """Prompts are found as far as whole pages, in exact mode whole chunks; counters agree."""
    case, stats = driven.case, driven.engine.stats()
    for request in case.requests:
        found = answers[request.request_id].outputs[-1].cached_tokens
        assert found < len(request.prompt_ids) and found % case.config.page_size == 0
        assert not case.config.exact or found % case.config.prefill_chunk == 0
    if not case.config.enable_prefix_caching:
        assert stats.prefix_cache_queries == stats.prefix_cache_hits == 0
    elif not case.cancel_at:
        assert stats.prefix_cache_queries == stats.prompt_tokens
        assert stats.prefix_cache_hits == sum(a.outputs[-1].cached_tokens for a in answers.values())
        if stats.num_preemptions == 0:
            assert prefilled(driven.engine) == stats.prompt_tokens - stats.prefix_cache_hits


@settings(max_examples=200, deadline=None, derandomize=True)
@given(traffic())
def test_every_answer_is_the_plain_one_and_every_page_comes_back(case: Case) -> None:
    """Whatever else runs, arrives late, is cancelled, is preempted or begins alike."""
    with pytest.MonkeyPatch.context() as patch:
        driven = Driven(case, patch)
        answers = driven.run(case.arrival_gap)
    assert_plain(case, answers)
    assert_found(driven, answers)
    driven.assert_idle()
    driven.assert_copy_finds_the_same()
    driven.reset()


def watch(monkeypatch: pytest.MonkeyPatch, met: set[str]) -> None:
    """Note the states that an engine is in while pages are on their way."""
    poll, cancel = Scheduler.poll_copies, Engine.cancel

    def watched(scheduler: Scheduler) -> None:
        poll(scheduler)
        loading = sum(s.status is Status.LOADING for s in scheduler.admitted)
        if loading == scheduler.config.max_num_seqs > 1:
            met.add("all of several slots")
        if loading and scheduler.has_idle_slots:
            met.add("a part of what is asked for")

    def watched_cancel(engine: Engine, request_id: str) -> None:
        sequence = engine._sequences.get(request_id)
        if sequence is not None and sequence.status is Status.LOADING:
            met.add("one that is cancelled")
        cancel(engine, request_id)

    monkeypatch.setattr(Scheduler, "poll_copies", watched)
    monkeypatch.setattr(Engine, "cancel", watched_cancel)


def test_host_memory_changes_no_answer_and_every_load_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same traffic twice, the second time all at once, with copies of any speed."""
    met: set[str] = set()
    watch(monkeypatch, met)

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(traffic(st.integers(1, 40)))
    def holds(case: Case) -> None:
        with pytest.MonkeyPatch.context() as patch:
            driven = Driven(case, patch)
            for arrival_gap in (case.arrival_gap, 0):
                assert_plain(case, driven.run(arrival_gap))
                driven.assert_idle()
            driven.assert_copy_finds_the_same()
            driven.reset()

    holds()
    assert met == LOADS


@settings(max_examples=60, deadline=None, derandomize=True)
@given(traffic(st.integers(1, 40)), st.integers(1, 60))
def test_a_directory_changes_no_answer_and_is_found_by_the_next_engine(
    tmp_path_factory: pytest.TempPathFactory, case: Case, files: int
) -> None:
    """The same traffic twice, with a restart between."""
    kept = {"kv_offloading_dir": str(tmp_path_factory.mktemp("pages"))}
    room = {"kv_offloading_dir_bytes": files * 2 * SIZE}
    case = replace(case, config=replace(case.config, **kept, **room))
    for before in ("nothing", "pages that no event has described"):
        with pytest.MonkeyPatch.context() as patch:
            driven = Driven(case, patch)
            assert_plain(case, driven.run(case.arrival_gap))
        driven.assert_idle()
        if before == "nothing":
            driven.assert_copy_finds_the_same()
        driven.engine.close()


@pytest.mark.parametrize("with_draft", [False, True])
def test_between_two_chunks_of_a_prompt_everybody_else_gets_a_round(
    monkeypatch: pytest.MonkeyPatch, with_draft: bool
) -> None:
    """And it verifies as many drafts as without the prompt beside it."""
    config = EngineConfig(3, max_model_len=64, max_num_seqs=2, page_size=4, prefill_chunk=4)
    engine = simulated_engine(monkeypatch, config, with_draft=with_draft)
    runner: Any = engine._runner
    order: list[str] = []
    for program in ("prefill", "round"):
        run = getattr(runner, program)

        def note(*inputs: Any, name: str = program, run: Any = run) -> Any:
            order.append(name)
            return run(*inputs)

        monkeypatch.setattr(runner, program, note)
    talker = Request("talker", [1, 2], SamplingParams(max_tokens=60, seed=1))
    long = Request("long", [i % VOCAB for i in range(40)], SamplingParams(max_tokens=2, seed=2))
    answers = drive(engine, [talker, long], arrival_gap=2)
    chunks = [i for i, name in enumerate(order) if name == "prefill"][1:]
    assert len(chunks) == 10
    assert all(order[i + 1] == "round" for i in chunks[:-1])
    during = [r for output in answers["talker"].outputs for r in output.rounds][:10]
    assert all(r.verified == 3 * with_draft for r in during)


def test_a_prefix_cache_in_use_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(0, max_model_len=64, max_num_seqs=2, page_size=4)
    engine = simulated_engine(monkeypatch, config)
    engine.add(Request("a", [1, 2], SamplingParams(max_tokens=9)))
    while engine.has_work:
        assert not engine.reset_prefix_cache()
        engine.step()
    assert engine.reset_prefix_cache()
