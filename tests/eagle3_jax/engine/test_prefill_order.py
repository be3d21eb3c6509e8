"""How many prefill chunks come between two rounds."""

from itertools import groupby

import pytest
from driving import drive, sizes
from simulated_device import VOCAB, simulated_pair

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.engine import MOST_CHUNKS
from eagle3_jax.sampling.params import SamplingParams


def requests(count: int, prompt: int) -> list[Request]:
    rows = [[(i + j) % VOCAB for j in range(prompt)] for i in range(count)]
    return [
        Request(f"{i}", row, SamplingParams(max_tokens=20, ignore_eos=True))
        for i, row in enumerate(rows)
    ]


def chunks_before_rounds(
    monkeypatch: pytest.MonkeyPatch, waiting: list[Request], max_num_seqs: int
) -> list[int]:
    """How many chunks came before each round, as long as there were any."""
    target, draft = simulated_pair(monkeypatch)
    config = sizes(3, num_pages=None, max_num_seqs=max_num_seqs, batch_buckets=(max_num_seqs,))
    engine = Engine(target, draft, config)
    runner, ran = engine._runner, []
    prefill, run_round = runner.prefill, runner.round
    monkeypatch.setattr(runner, "prefill", lambda c, _: (ran.append("chunk"), prefill(c))[1])
    monkeypatch.setattr(runner, "round", lambda m, k: (ran.append("round"), run_round(m, k))[1])
    drive(engine, waiting)
    return [len(list(run)) for kind, run in groupby(ran) if kind == "chunk"]


def test_several_prompts_are_prefilled_at_once_while_slots_are_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve slots: three times four chunks, and then one whenever an answer ends."""
    counts = chunks_before_rounds(monkeypatch, requests(12, 5), max_num_seqs=12)
    assert counts == [MOST_CHUNKS] * 3


def test_a_prompt_of_many_chunks_lets_rounds_through_after_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that waits for nobody else: five chunks, the rows that decode wait for one at a time."""
    short, long = requests(1, 5)[0], Request("long", list(range(VOCAB))[::-1] * 2, SamplingParams())
    counts = chunks_before_rounds(monkeypatch, [short, long], max_num_seqs=2)
    assert counts[1:] == [1] * (len(counts) - 1)
    assert sum(counts) == 6


def test_prompts_that_wait_for_a_slot_come_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = chunks_before_rounds(monkeypatch, requests(6, 5), max_num_seqs=2)
    assert counts[0] == 2 and max(counts) <= 2
