"""The choice of k and what it is based on: costs and acceptance come from curves, times from a
simulated device."""

import random
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from driving import drive, sizes
from mi355x_curves import ACCEPT_LENGTHS, EXPERTS_MS, ROUND_MS, experts_share
from simulated_device import VOCAB, simulated_pair

from eagle3_jax.engine import Engine, EngineConfig, Request, choose_k
from eagle3_jax.engine.choose_k import (
    MARGIN,
    ChosenK,
    FixedChooser,
    GoodputChooser,
    Load,
    Plan,
    RecentAcceptance,
    StepCosts,
    best_plan,
)
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.head_choice import chooses_in_kernel

K = 6
LAG = 2  # rounds that are dispatched before one is read
SURVIVAL = [after - before for before, after in pairwise(ACCEPT_LENGTHS)]
GOLDEN_RATIO = (5**0.5 - 1) / 2
SETTLING = 50
each_curve = pytest.mark.parametrize("costs", ROUND_MS.values(), ids=ROUND_MS)


def sequences(count: int, num_drafts: int | None = None) -> list[EngineSequence]:
    sampling = SamplingParams(num_speculative_tokens=num_drafts, max_tokens=8)
    return [EngineSequence.of(Request(f"{i}", [1], sampling), (), 64, None) for i in range(count)]


class Device:
    """Rounds that cost what the curve says, give or take `noise`, and accept as published: draws
    are spread evenly, so that any stretch of rounds has close to the published shares. `experts_ms`
    of a round go in proportion to the experts that verified rows do not choose."""

    def __init__(
        self, costs: dict[int, tuple[float, ...]], noise: float = 0.0, experts_ms: float = 0.0
    ) -> None:
        self.costs, self._experts_ms = costs, experts_ms
        config = EngineConfig(num_speculative_tokens=K, max_num_seqs=64, adaptive=True)
        self.chooser = GoodputChooser(config)
        self.bucket_for = lambda size: next(bucket for bucket in costs if bucket >= size)
        self.survival, self.hard_survival = SURVIVAL, SURVIVAL
        """Of the sequences, and of every other one."""
        self.tokens = self.ms = 0.0
        self._rng, self._noise, self._draws = random.Random(0), noise, 0.0
        self._unread: deque[tuple[ChosenK, list[EngineSequence]]] = deque()

    def rounds(self, size: int, count: int, *, undrafted: int = 0) -> list[int]:
        """k of so many rounds at a load; so many of its sequences want no drafts."""
        members, chosen = [*sequences(undrafted, 0), *sequences(size - undrafted)], []
        for _ in range(count):
            choice = self.chooser.choose(members)
            chosen.append(choice.drafts)
            self._unread.append((choice, members))
            if len(self._unread) > LAG:
                self._read(*self._unread.popleft())
        return chosen

    def _read(self, choice: ChosenK, members: list[EngineSequence]) -> None:
        wanted = [member.wanted_drafts(choice.drafts) for member in members]
        limits, whole = choice.limits or wanted, len(members) * (choice.drafts + 1)
        saved = experts_share(whole) - experts_share(sum(limits) + len(members))
        cost = self.costs[self.bucket_for(len(members))][choice.drafts]
        cost -= self._experts_ms * saved if choice.limits else 0
        self.ms += cost
        self.chooser.observe_time(choice, cost * (1 + self._noise * self._rng.uniform(-1, 1)))
        for index, (member, limit) in enumerate(zip(members, limits, strict=True)):
            survival = (self.hard_survival if index % 2 else self.survival)[:limit]
            self.tokens += 1 + sum(survival)
            if member.wanted_drafts(K):
                draw = self._draws = (self._draws + GOLDEN_RATIO) % 1
                accepted = sum(draw < share for share in survival)
                self.chooser.observe_acceptance(member, limit, accepted)

    def goodput(self, size: int, drafts: Sequence[int]) -> float:
        """Tokens a millisecond of these rounds, over the best single k's."""
        costs = self.costs[self.bucket_for(size)]
        best = max(length / cost for length, cost in zip(ACCEPT_LENGTHS, costs, strict=True))
        tokens = sum(ACCEPT_LENGTHS[k] for k in drafts)
        return tokens / sum(costs[k] for k in drafts) / best


@each_curve
@pytest.mark.parametrize("noise", [0.0, 0.04])
def test_at_every_load_the_published_curves_lead_within_two_percent_of_the_best_k(
    costs: dict[int, tuple[float, ...]], noise: float
) -> None:
    """The k in use, and the mean of all rounds after the first ones, trials included."""
    for size in (4, 5, 8, 9, 16, 17, 31, 32, 33, 48, 64):
        device = Device(costs, noise)
        chosen = device.rounds(size, 300)[SETTLING:]
        (load,) = device.chooser._loads.values()
        assert device.goodput(size, [load.best.drafts]) >= 0.98, size
        assert device.goodput(size, chosen) >= 0.98, size


def test_a_change_of_acceptance_is_followed() -> None:
    """Drafts that are never accepted end in k = 0, and good ones in drafting again."""
    device = Device(ROUND_MS["tuned"])
    device.rounds(8, 300)
    device.survival = device.hard_survival = [0.0] * K
    device.rounds(8, 600)
    assert device.rounds(8, 200).count(0) >= 190
    device.survival = device.hard_survival = SURVIVAL
    device.rounds(8, 2500)
    assert device.goodput(8, device.rounds(8, 100)) >= 0.97


@pytest.mark.parametrize(("curve", "noise"), [("tuned", 0.0), ("tuned", 0.04), ("roof", 0.04)])
@pytest.mark.parametrize(("size", "least"), [(4, 1.0), (16, 1.03), (64, 0.985)])
def test_easy_and_hard_requests_draft_their_own_lengths(
    size: int, least: float, curve: str, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens a second over those of one k for all: on MI355X, 64 sequences read every expert."""
    rates = {}
    for by_row in (False, True):
        if not by_row:
            monkeypatch.setattr(choose_k, "LEAST_SAVED", 1.1)
        device = Device(ROUND_MS[curve], noise, EXPERTS_MS[curve])
        device.survival = [0.9**i for i in range(1, K + 1)]
        device.hard_survival = [0.25**i for i in range(1, K + 1)]
        device.rounds(size, 1000)
        rates[by_row] = device.tokens / device.ms
        monkeypatch.undo()
    assert rates[True] >= least * rates[False]


def test_a_better_plan_must_be_better_by_the_margin() -> None:
    none, one = Plan(0), Plan(1)
    assert best_plan({none: 1.0, one: 1 + 0.9 * MARGIN}, none) == none
    assert best_plan({none: 1.0, one: 1 + 1.1 * MARGIN}, none) == one
    assert best_plan({none: 1.0, one: 0.9}, Plan(3)) == none


def test_no_round_drafts_more_than_its_requests_want() -> None:
    device = Device(ROUND_MS["tuned"])
    members = [*sequences(2, num_drafts=2), *sequences(2, num_drafts=0)]
    for _ in range(200):
        choice = device.chooser.choose(members)
        assert choice.drafts <= 2
        device.chooser.observe_time(choice, 1.0)
    assert device.chooser.choose(sequences(3, num_drafts=0)).drafts == 0


def test_a_request_that_wants_no_drafts_leaves_its_neighbours_theirs() -> None:
    """Every k is tried beside it, and one that is best for eight stays best for seven of them."""
    chosen = Device(ROUND_MS["tuned"]).rounds(8, 300, undrafted=1)
    assert set(chosen[:SETTLING]) == set(range(K + 1))
    assert chosen[-1] == Device(ROUND_MS["tuned"]).rounds(8, 300)[-1] > 0


def test_drafts_that_nobody_wants_are_no_goodput() -> None:
    chooser = GoodputChooser(EngineConfig(num_speculative_tokens=K, adaptive=True))
    load, wide = Load(Plan(K), Plan(K)), Plan(K)
    for _ in range(2):
        load.costs.observe(wide, 2.0)
    members = [*sequences(3, num_drafts=1), *sequences(1)]
    tokens = chooser._acceptance.expected_tokens()
    goodput = chooser._goodput(load, members, {wide: [1, 1, 1, K]})
    assert goodput[wide] == pytest.approx((3 * tokens[1] + tokens[K]) / 2.0)


def test_lean_and_full_rounds_and_batch_sizes_are_measured_apart() -> None:
    device = Device(ROUND_MS["tuned"])
    full = Request("x", [1], SamplingParams(repetition_penalty=1.1, max_tokens=8))
    controlled = EngineSequence.of(full, (), 64, None)
    batches = sequences(3), sequences(5), [*sequences(2), controlled]
    programs = [device.chooser.choose(members).program for members in batches]
    lean = ProgramKind.ARGMAX_ROUND if chooses_in_kernel() else ProgramKind.ROUND
    full = ProgramKind.FULL_ROUND
    assert programs == [Program(lean, 4), Program(lean, 8), Program(full, 4)]


def test_acceptance_counts_a_position_only_where_it_was_verified() -> None:
    acceptance = RecentAcceptance(3)
    for _ in range(4000):
        acceptance.observe(3, 3)
        acceptance.observe(3, 0)
        acceptance.observe(2, 2)
    assert acceptance.rates == pytest.approx([2 / 3, 1.0, 1.0], abs=0.01)
    assert acceptance.expected_tokens() == pytest.approx([1, 5 / 3, 7 / 3, 3], abs=0.05)


def test_a_table_says_k_by_batch_size() -> None:
    """Sizes between rows and after the last take the row before, as in vLLM."""
    table = ((1, 2, 3), (4, 5, 1), (6, 6, 0))
    config = EngineConfig(num_speculative_tokens_per_batch_size=table)
    chooser = FixedChooser(config)
    chosen = [chooser.choose(sequences(size)).drafts for size in range(1, 9)]
    assert chosen == [3, 3, 3, 1, 1, 0, 0, 0]
    assert config.draft_counts == (0, 1, 3)
    always = FixedChooser(EngineConfig(num_speculative_tokens=2))
    assert {always.choose(sequences(size)).drafts for size in range(1, 9)} == {2}


def test_a_disturbed_round_and_the_first_one_do_not_count() -> None:
    """The first run of a program, and two preempted ones among eight."""
    costs = StepCosts()
    for seconds in (50.0, 3.0, 9.0, 3.1, 3.0, 20.0, 3.1):
        costs.observe(Plan(2), seconds)
    assert costs.count(Plan(2)) == 6
    assert costs.seconds(Plan(2)) == pytest.approx(3.05, abs=0.06)


PREFILL_S = 100.0


def round_s(drafts: int) -> float:
    return 10.0 + drafts


class Timeline:
    """Programs run one after the other, each as long as it costs; a read waits for its end."""

    def __init__(self, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.free_at = 0.0
        self._ends: dict[int, float] = {}
        self._reports: list[Any] = []
        prefill, run_round, read = runner.prefill, runner.round, runner.read

        def timed_read(report: Any) -> Any:
            self.now = max(self.now, self._ends[id(report)])
            return read(report)

        monkeypatch.setattr(runner, "prefill", lambda c, _: self._run(prefill(c), PREFILL_S))
        monkeypatch.setattr(
            runner, "round", lambda m, k, most: self._run(run_round(m, k, most), round_s(k))
        )
        monkeypatch.setattr(runner, "read", timed_read)

    def _run(self, report: Any, seconds: float) -> Any:
        """The host needs a second for each dispatch."""
        self.now += 1.0
        self.free_at = max(self.free_at, self.now) + seconds
        self._ends[id(report)] = self.free_at
        self._reports.append(report)
        return report


def test_a_round_is_measured_as_long_as_it_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between prefills of one and of many chunks, arrivals and ends; most rounds are measured."""
    target, draft = simulated_pair(monkeypatch)
    engine = Engine(
        target, draft, sizes(3, num_pages=None, adaptive=True), clock=lambda: timeline.now
    )
    timeline = Timeline(engine._runner, monkeypatch)
    measured: list[tuple[ChosenK, float]] = []
    took = engine._chooser.observe_time

    def record(choice: ChosenK, seconds: float) -> None:
        measured.append((choice, seconds))
        took(choice, seconds)

    monkeypatch.setattr(engine._chooser, "observe_time", record)
    requests = [
        Request(
            f"{i}", [(i + j) % VOCAB for j in range(3 + 5 * (i % 6))], SamplingParams(max_tokens=30)
        )
        for i in range(12)
    ]
    drive(engine, requests, arrival_gap=4)
    assert len(measured) > 40
    assert {choice.drafts for choice, _ in measured} == {0, 1, 2, 3}
    for choice, seconds in measured:
        assert seconds == round_s(choice.drafts)
