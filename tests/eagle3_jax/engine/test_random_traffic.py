"""Random traffic through the real engine on a simulated device that checks every cache row."""

from dataclasses import replace
from typing import Any

import pytest
from driving import drive
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_device import VOCAB, plain_answer, simulated_engine
from toy_tokenizer import ToyTokenizer

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams

EOS = (3,)
TOKENIZER = ToyTokenizer()


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
def traffic(draw: st.DrawFn) -> dict[str, Any]:
    prompt = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)
    requests = [
        Request(f"{i}", draw(prompt), draw(sampling()), client=draw(st.sampled_from("aab")))
        for i in range(draw(st.integers(1, 7)))
    ]
    names = st.sampled_from([request.request_id for request in requests])
    max_model_len, page_size = draw(st.integers(13, 30)), draw(st.sampled_from([1, 3, 4, 16]))
    pages_per_seq = -(-max_model_len // page_size)
    config = EngineConfig(
        num_speculative_tokens=draw(st.integers(0, 4)),
        max_model_len=max_model_len,
        max_num_seqs=draw(st.integers(1, 4)),
        page_size=page_size,
        num_pages=1 + pages_per_seq + draw(st.integers(0, pages_per_seq)),
        prefill_chunk=draw(st.integers(1, 8)),
        exact=draw(st.booleans()),
    )
    return {
        "requests": requests,
        "config": config,
        "arrival_gap": draw(st.integers(0, 3)),
        "cancel_at": draw(st.dictionaries(names, st.integers(0, 12), max_size=2)),
    }


@settings(max_examples=120, deadline=None, derandomize=True)
@given(traffic())
def test_every_answer_is_the_plain_one_and_every_page_comes_back(case: dict[str, Any]) -> None:
    """Whatever else runs, arrives late, is cancelled or is preempted."""
    config: EngineConfig = case["config"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        engine = simulated_engine(monkeypatch, config, eos=EOS, tokenizer=TOKENIZER)
        answers = drive(
            engine, case["requests"], arrival_gap=case["arrival_gap"], cancel_at=case["cancel_at"]
        )
    stats = engine.stats()
    assert stats.free_pages == stats.total_pages
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0)
    for request in case["requests"]:
        answer = answers[request.request_id]
        tokens, text, *finish = plain_answer(request, config, EOS, TOKENIZER)
        if answer.finish[0] == "abort":
            assert request.request_id in case["cancel_at"]
            unstopped = replace(request, sampling=replace(request.sampling, stop=()))
            sampled, *_ = plain_answer(unstopped, config, EOS, TOKENIZER)
            assert answer.token_ids == sampled[: len(answer.token_ids)]
            assert answer.text == TOKENIZER.decode(answer.token_ids)
        else:
            assert answer.token_ids == tokens
            assert answer.text == text
            assert list(answer.finish) == finish


@settings(max_examples=60, deadline=None, derandomize=True)
@given(traffic())
def test_accepted_counts_add_up_to_the_tokens_generated(case: dict[str, Any]) -> None:
    """A token comes from a prefill or from a round of accepted + 1; the last round may be cut."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        engine = simulated_engine(monkeypatch, case["config"], eos=EOS, tokenizer=TOKENIZER)
        answers = drive(engine, case["requests"], arrival_gap=case["arrival_gap"])
    stats, k = engine.stats(), case["config"].num_speculative_tokens
    for request in case["requests"]:
        answer = answers[request.request_id]
        assert all(0 <= count <= k for count in answer.accepted)
        from_rounds = sum(count + 1 for count in answer.accepted)
        cut = 0 if answer.finish[0] == "length" else (answer.accepted or [0])[-1]
        if not request.sampling.stop:
            prefills = len(answer.token_ids) - from_rounds + cut
            assert prefills >= 1
            if stats.num_preemptions == 0 or case["config"].exact:
                assert prefills - cut <= 1
    assert stats.num_accepted_tokens == sum(sum(a.accepted) for a in answers.values())
    assert stats.num_accepted_tokens == sum(stats.num_accepted_per_pos)
    assert stats.num_accepted_tokens <= stats.num_draft_tokens <= k * stats.num_drafts
    assert list(stats.num_accepted_per_pos) == sorted(stats.num_accepted_per_pos, reverse=True)
    assert stats.prompt_tokens == sum(len(r.prompt_ids) for r in case["requests"])


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


def test_a_request_id_names_one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(0, max_model_len=64, max_num_seqs=2, page_size=4)
    engine = simulated_engine(monkeypatch, config)
    request = Request("a", [1, 2], SamplingParams(max_tokens=2))
    engine.add(request)
    with pytest.raises(ValueError, match="'a' is in use"):
        engine.add(request)
    while engine.has_work:
        engine.step()
    engine.add(request)


def test_a_prefix_cache_in_use_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(0, max_model_len=64, max_num_seqs=2, page_size=4)
    engine = simulated_engine(monkeypatch, config)
    engine.add(Request("a", [1, 2], SamplingParams(max_tokens=9)))
    while engine.has_work:
        assert not engine.reset_prefix_cache()
        engine.step()
    assert engine.reset_prefix_cache()
