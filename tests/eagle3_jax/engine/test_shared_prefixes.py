"""Requests that begin alike, on the simulated device: it checks every row of target and draft."""

from dataclasses import replace
from typing import Any

import pytest
from driving import Answer, drive
from simulated_device import VOCAB, prefilled, simulated_engine

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.programs.runner import RowReport
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.sampler import NO_CANDIDATE, NOT_FINITE

CONFIG = EngineConfig(
    3, max_model_len=48, max_num_seqs=4, page_size=4, num_pages=49, prefill_chunk=8
)
STEM = [5, 9, 2, 14, 7, 7, 1, 12, 3, 16, 0, 8, 4, 11, 6, 10, 13]


def request(name: str, prompt: list[int], max_tokens: int = 12) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, seed=1))


def cached(answer: Answer) -> int:
    """The prompt tokens found in the cache, as every output of an answer says."""
    (count,) = {output.cached_tokens for output in answer.outputs}
    return count


@pytest.mark.parametrize(
    ("alike", "found"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12), (17, 16)]
)
def test_a_page_is_found_only_where_the_token_after_it_agrees_too(
    monkeypatch: pytest.MonkeyPatch, alike: int, found: int
) -> None:
    """Up to a page's end is not enough: the draft's last row in it saw the next token."""
    engine = simulated_engine(monkeypatch, CONFIG)
    other = [*STEM[:alike], *[(token + 1) % VOCAB for token in STEM[alike:]], 3]
    drive(engine, [request("a", [*STEM, 2])])
    assert cached(drive(engine, [request("b", other)])["b"]) == found


def test_the_last_token_of_a_known_prompt_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = simulated_engine(monkeypatch, CONFIG)
    for length, found in ((16, 12), (17, 16), (13, 12), (12, 8), (1, 0)):
        drive(engine, [request("a", STEM[:length])])
        before = prefilled(engine)
        assert cached(drive(engine, [request("b", STEM[:length])])["b"]) == found
        assert prefilled(engine) - before == length - found


@pytest.mark.parametrize(("page_size", "chunk", "found"), [(4, 8, 8), (4, 6, 12), (2, 5, 10)])
def test_exact_mode_goes_on_from_the_grid_of_chunks(
    monkeypatch: pytest.MonkeyPatch, page_size: int, chunk: int, found: int
) -> None:
    config = replace(CONFIG, exact=True, page_size=page_size, prefill_chunk=chunk, num_pages=None)
    engine = simulated_engine(monkeypatch, config)
    drive(engine, [request("a", STEM)])
    assert cached(drive(engine, [request("b", STEM[:15])])["b"]) == found


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("length", range(12, 18))
def test_a_conversation_goes_on_from_its_answer_but_in_exact_mode_from_its_prompt(
    monkeypatch: pytest.MonkeyPatch, exact: bool, length: int
) -> None:
    """The draft's rows of the last round's tokens are not final, and may have been made up."""
    engine = simulated_engine(monkeypatch, replace(CONFIG, exact=exact))
    first = drive(engine, [request("a", STEM[:length], 13)])["a"]
    final = length + len(first.token_ids) - 1 - (first.accepted[-1] + 1)
    again = drive(engine, [request("b", [*STEM[:length], *first.token_ids, 1])])["b"]
    assert cached(again) == ((length - 1) // 8 * 8 if exact else final // 4 * 4)


def test_those_who_come_together_share_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = simulated_engine(monkeypatch, CONFIG)
    answers = drive(engine, [request(f"{i}", [*STEM, i]) for i in range(4)])
    assert [cached(answer) for answer in answers.values()] == [0, 16, 16, 16]
    assert prefilled(engine) == 18 + 3 * 2
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (4 * 18, 3 * 16)


def test_what_a_cancelled_request_had_committed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = simulated_engine(monkeypatch, CONFIG)
    drive(engine, [request("a", STEM, 20)], cancel_at={"a": 1})
    assert cached(drive(engine, [request("b", STEM)])["b"]) == 8, "one chunk had been dispatched"


def test_a_preempted_sequence_finds_its_own_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as found only what its first admission found."""
    config = replace(CONFIG, num_pages=18, max_num_seqs=2)
    engine = simulated_engine(monkeypatch, config)
    asked = [request("a", STEM, 30), request("b", STEM[::-1], 30)]
    answers = drive(engine, asked)
    stats = engine.stats()
    assert stats.num_preemptions > 0 and stats.prefix_cache_hits == 0
    cold = simulated_engine(monkeypatch, replace(config, enable_prefix_caching=False))
    assert [a.token_ids for a in drive(cold, asked).values()] == [
        a.token_ids for a in answers.values()
    ]
    assert prefilled(engine) < prefilled(cold)


def test_idle_pages_go_before_a_sequence_is_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes 8 of 12 pages; those used longest ago go first, prompts after answers."""
    engine = simulated_engine(monkeypatch, replace(CONFIG, num_pages=13, max_num_seqs=1))
    prompts = {name: [token, *STEM[1:]] for name, token in (("a", 5), ("b", 6), ("c", 8))}
    for name in ("a", "b", "a", "c"):
        drive(engine, [request(name, prompts[name])])
    found = {n: cached(drive(engine, [request(n, prompts[n], 1)])[n]) for n in ("a", "c", "b")}
    assert found["a"] == found["c"] == 16 > found["b"]
    assert engine.stats().num_preemptions == 0


@pytest.mark.parametrize(("failure", "found"), [(NOT_FINITE, 0), (NO_CANDIDATE, 12)])
@pytest.mark.parametrize("program", ["prefill", "_advance"])
def test_pages_of_a_request_whose_logits_were_not_finite_are_not_found(
    monkeypatch: pytest.MonkeyPatch, failure: int, found: int, program: str
) -> None:
    """Not even those it had found itself. Options that bar every token say nothing about KV."""
    engine = simulated_engine(monkeypatch, CONFIG)
    runner: Any = engine._runner
    run = getattr(runner, program)

    def fail(what: Any, *inputs: Any) -> Any:
        report = run(what, *inputs)
        sequence = what[0].sequence if isinstance(what, list) else what
        if sequence.request.request_id != "failing":
            return report
        failed = RowReport([failure], 0)
        return [failed] if isinstance(report, list) and report else report and failed

    monkeypatch.setattr(runner, program, fail)
    drive(engine, [request("first", STEM[:9])])
    answer = drive(engine, [request("failing", STEM[:14])])["failing"]
    assert answer.finish[0] == "error" and cached(answer) == 8
    assert cached(drive(engine, [request("last", STEM[:14])])["last"]) == found
    assert engine.stats().free_pages == engine.stats().total_pages
