"""Whatever k a round drafts, the answer is the plain one, and both caches stay true."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from driving import Answer, drive, sizes
from lab import Lab, one_row, true_rows

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.adaptive.choose_k import ChosenK
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.widths import Widths

TABLE = ((1, 1, 1), (2, 2, 0), (3, 3, 3))


class Script:
    """A chooser that runs through k = 0..3 in a fixed order, so that every change happens."""

    ORDER = (3, 0, 0, 2, 0, 1, 3, 1, 0, 3, 2, 1, 0, 0, 0)

    def __init__(self) -> None:
        self.rounds = count()

    def choose(self, members: object) -> ChosenK:
        return ChosenK(self.ORDER[next(self.rounds) % len(self.ORDER)])

    def took(self, choice: ChosenK, seconds: float) -> None: ...

    def committed(self, verified: int, accepted: int) -> None: ...


def ticking() -> Iterator[float]:
    """A clock of its own for every engine: each look at it is a second later."""
    return map(float, count())


def same(answers: dict[str, Answer], plain: dict[str, Answer]) -> bool:
    return all(
        (answer.token_ids, answer.finish) == (plain[name].token_ids, plain[name].finish)
        for name, answer in answers.items()
    )


@pytest.fixture(scope="module")
def chosen(target: Target, draft: Eagle3Draft) -> Engine:
    """One engine for all tests here: its programs are many."""
    return Engine(target, draft, sizes(3, adaptive=True), clock=ticking().__next__)


def test_any_order_of_k_gives_the_plain_tokens(
    chosen: Engine,
    requests: list[Request],
    plain: dict[str, Answer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Preemptions included; drafts are accepted after every kind of change."""
    script = Script()
    monkeypatch.setattr(chosen, "_chooser", script)
    answers = drive(chosen, requests, arrival_gap=2)
    assert same(answers, plain)
    assert next(script.rounds) > 5 * len(Script.ORDER)
    runner = chosen._runner
    assert set(runner.executor.compiled) <= set(runner.executor.programs), "warmup would miss one"
    stats = chosen.stats()
    assert stats.free_pages == stats.total_pages and stats.num_preemptions > 0
    assert 0.3 < stats.num_accepted_tokens / stats.num_drafts


def test_the_controller_gives_the_plain_tokens(
    chosen: Engine, requests: list[Request], plain: dict[str, Answer]
) -> None:
    assert same(drive(chosen, requests, arrival_gap=3), plain)


def test_a_table_gives_the_plain_tokens(
    target: Target, draft: Eagle3Draft, requests: list[Request], plain: dict[str, Answer]
) -> None:
    config = sizes(3, num_speculative_tokens_per_batch_size=TABLE)
    engine = Engine(target, draft, config)
    assert same(drive(engine, requests, arrival_gap=4), plain)
    stats = engine.stats()
    assert 0 < stats.num_draft_tokens < 3 * stats.num_drafts


def test_neighbours_who_want_fewer_drafts_get_the_plain_tokens_too(
    chosen: Engine, requests: list[Request], plain: dict[str, Answer]
) -> None:
    wanted = [
        replace(request, sampling=replace(request.sampling, num_speculative_tokens=i % 3))
        for i, request in enumerate(requests)
    ]
    answers = drive(chosen, wanted, arrival_gap=2)
    assert same(answers, plain)
    for i, answer in enumerate(answers.values()):
        assert max(answer.accepted) <= i % 3
    assert any(max(answer.accepted) == 2 for answer in answers.values())


def test_a_round_of_no_drafts_leaves_draft_rows_as_true_as_a_prefill(
    target: Target, draft: Eagle3Draft
) -> None:
    """Rounds of k = 3, 0, 0, 1, 0, 2: every change of width, up and down."""
    lab = Lab(target, draft, sizes(3))
    tokens = [5, 9, 3, 7]
    tokens += lab.prefill(0, tokens, one_row())[:1]
    for drafts, rows in ((3, 4), (0, 4), (0, 1), (1, 4), (0, 4), (2, 4)):
        report = lab.round([0], Widths(drafts, rows))[0]
        assert len(report) == drafts + 3 and report[-1] == drafts
        tokens += report[: report[-2]].tolist()
    lab.round([0], Widths(0, 4))
    length = len(tokens) - 1
    target_rows, draft_rows = true_rows(lab, tokens)
    np.testing.assert_allclose(lab.target_rows(0, length), target_rows[:, :length], atol=1e-5)
    np.testing.assert_allclose(lab.draft_rows(0, length), draft_rows[:, :length], atol=1e-5)
