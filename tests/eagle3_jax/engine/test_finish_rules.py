"""The end of an answer, with drafts accepted around it, on the simulated device."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from driving import Answer, drive, sizes
from simulated_device import VOCAB, plain_answer, simulated_engine
from toy_tokenizer import ToyTokenizer

from eagle3_jax.engine import Engine, Request
from eagle3_jax.sampling.params import SamplingParams

TOKENIZER = ToyTokenizer()
MOST = 40


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return simulated_engine(monkeypatch, sizes(3), tokenizer=TOKENIZER)


@pytest.fixture
def free(engine: Engine) -> dict[str, Answer]:
    """Long answers that nothing ends early."""
    return drive(engine, [asked(i) for i in range(8)])


def asked(index: int, **sampling: Any) -> Request:
    """Request `index`: a seeded, sampled one of MOST tokens unless given others."""
    params = {"temperature": 0.8, "max_tokens": MOST, "seed": index} | sampling
    return Request(f"{index}", [(5 * index + 1) % VOCAB, 3, 8], SamplingParams(**params))


def ask(engine: Engine, request: Request) -> Answer:
    answer = drive(engine, [request])[request.request_id]
    stats = engine.stats()
    assert stats.free_pages == stats.total_pages
    return answer


def new_inside_a_run(free: dict[str, Answer]) -> tuple[int, int]:
    """(request, index) of an accepted draft, not the first of its answer, with more after it in
    its round, whose token the answer did not contain before."""
    for name, answer in free.items():
        first = 1
        for count in answer.accepted:
            for index in range(first, first + count):
                if answer.token_ids[index] not in answer.token_ids[:index]:
                    return int(name), index
            first += count + 1
    raise AssertionError("no such draft: choose other seeds")


def test_a_stop_id_inside_an_accepted_run_is_the_last_token(
    engine: Engine, free: dict[str, Answer]
) -> None:
    """accepted counts the whole run: it is what the round did, before trimming."""
    name, index = new_inside_a_run(free)
    whole = free[f"{name}"]
    stop = whole.token_ids[index]
    answer = ask(engine, asked(name, stop_token_ids=[stop]))
    assert answer.token_ids == whole.token_ids[: index + 1]
    assert answer.finish == ("stop", stop)
    assert answer.accepted == whole.accepted[: len(answer.accepted)]
    assert 1 + sum(count + 1 for count in answer.accepted) > len(answer.token_ids)
    assert answer.text == TOKENIZER.decode(answer.token_ids[:-1])


def test_eos_ends_an_answer_unless_it_is_ignored(
    monkeypatch: pytest.MonkeyPatch, free: dict[str, Answer]
) -> None:
    name, index = new_inside_a_run(free)
    whole = free[f"{name}"]
    eos = (whole.token_ids[index],)
    engine = simulated_engine(monkeypatch, sizes(3), eos=eos, tokenizer=TOKENIZER)
    answer = ask(engine, asked(name))
    assert answer.token_ids == whole.token_ids[: index + 1]
    assert answer.finish == ("stop", None)
    ignoring = ask(engine, asked(name, ignore_eos=True))
    assert ignoring.token_ids == whole.token_ids
    assert ignoring.finish == ("length", None)


@pytest.mark.parametrize("most", range(1, 9))
def test_no_token_comes_after_max_tokens(
    engine: Engine, free: dict[str, Answer], most: int
) -> None:
    for name in range(4):
        answer = ask(engine, asked(name, max_tokens=most))
        assert answer.token_ids == free[f"{name}"].token_ids[:most]
        assert answer.finish == ("length", None)


def test_a_stop_within_the_budget_beats_length_and_one_beyond_it_does_not(
    engine: Engine, free: dict[str, Answer]
) -> None:
    name, index = new_inside_a_run(free)
    tokens = free[f"{name}"].token_ids
    stop = {"stop_token_ids": [tokens[index]]}
    last = ask(engine, asked(name, max_tokens=index + 1, **stop))
    assert (last.token_ids, last.finish) == (tokens[: index + 1], ("stop", tokens[index]))
    beyond = ask(engine, asked(name, max_tokens=index, **stop))
    assert (beyond.token_ids, beyond.finish) == (tokens[:index], ("length", None))


def test_min_tokens_bars_stop_ids_and_plain_decoding_agrees(
    engine: Engine, free: dict[str, Answer]
) -> None:
    name, index = new_inside_a_run(free)
    stop = free[f"{name}"].token_ids[index]
    request = asked(name, stop_token_ids=[stop], min_tokens=index + 3)
    answer = ask(engine, request)
    assert len(answer.token_ids) >= index + 3
    assert stop not in answer.token_ids[: index + 3]
    assert answer.token_ids == plain_answer(request, engine.config)[0]


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens_cuts_text_and_ids(
    engine: Engine, free: dict[str, Answer], include: bool
) -> None:
    """For every two neighbouring tokens of an answer: the end of one and the start of the next."""
    checked = 0
    for name, index in product(range(4), range(1, 20)):
        whole = free[f"{name}"]
        before, after = (TOKENIZER.decode([t]) for t in whole.token_ids[index : index + 2])
        stop, text = before[-1:] + after[:1], TOKENIZER.decode(whole.token_ids)
        start = text.find(stop)
        if len(stop) < 2 or not stop.isascii() or "\ufffd" in text[start - 1 : start + 2]:
            continue
        answer = ask(engine, asked(name, stop=stop, include_stop_str_in_output=include))
        assert answer.finish == ("stop", stop)
        assert answer.text == text[: start + len(stop) * include]
        kept = len(answer.token_ids)
        assert answer.token_ids == whole.token_ids[:kept]
        if include:
            assert TOKENIZER.decode(answer.token_ids).startswith(answer.text)
        else:
            assert answer.text.startswith(TOKENIZER.decode(answer.token_ids))
        checked += 1
    assert checked >= 9


def test_tokens_and_text_handed_out_add_up_and_are_never_taken_back(
    engine: Engine, free: dict[str, Answer]
) -> None:
    """With stop strings that hold text back but never come, all of it arrives."""
    stop = ["ab" * 9, "c" * 9, "中" * 9]
    answers = drive(engine, [asked(i, stop=stop) for i in range(8)])
    for name, answer in answers.items():
        assert answer.token_ids == free[name].token_ids
        assert answer.text == free[name].text == TOKENIZER.decode(answer.token_ids)
        assert answer.accepted == free[name].accepted
        assert answer.finish == ("length", None)


def test_an_answer_without_a_limit_runs_to_max_model_len(engine: Engine) -> None:
    answer = ask(engine, asked(0, max_tokens=None))
    assert len(answer.token_ids) + 3 == engine.config.max_model_len
    assert answer.finish == ("length", None)


def test_max_model_len_beats_max_tokens(engine: Engine) -> None:
    request = replace(asked(0, max_tokens=100), prompt_ids=[1] * 60)
    assert len(ask(engine, request).token_ids) == 4


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("x", [1] * 64, SamplingParams()), "64 tokens.*max_model_len=64"),
        (Request("x", [], SamplingParams()), "0 tokens"),
        (
            Request("x", [VOCAB], SamplingParams()),
            f"prompt ids must be 0..{VOCAB - 1}, got {VOCAB}",
        ),
        (Request("x", [-1], SamplingParams()), "got -1"),
        (Request("x", [1], SamplingParams(n=2)), "expand n > 1"),
        (Request("x", [1], SamplingParams(stop_token_ids=range(65))), "at most 64 ids"),
        (Request("taken", [1], SamplingParams()), "'taken' is in use"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_that_cannot_run_is_refused_and_the_rest_goes_on(
    engine: Engine, free: dict[str, Answer], request_: Request, message: str
) -> None:
    engine.add(replace(asked(1), request_id="taken"))
    with pytest.raises(ValueError, match=message):
        engine.add(request_)
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for output in engine.step() for token in output.token_ids]
    assert tokens == free["1"].token_ids


def test_stop_strings_need_a_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = simulated_engine(monkeypatch, sizes(3))
    with pytest.raises(ValueError, match="tokenizer"):
        engine.add(Request("x", [1], SamplingParams(stop="a")))
    assert not engine.has_work
