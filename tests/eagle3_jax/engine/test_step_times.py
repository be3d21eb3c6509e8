"""What an adaptive engine measures of its rounds, on a device whose times are known."""

from typing import Any

import pytest
from driving import drive, sizes
from simulated_device import VOCAB, simulated_pair

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.adaptive.choose_k import ChosenK
from eagle3_jax.sampling.params import SamplingParams

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
        monkeypatch.setattr(runner, "round", lambda m, k: self._run(run_round(m, k), round_s(k)))
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
    took = engine._chooser.took

    def record(choice: ChosenK, seconds: float) -> None:
        measured.append((choice, seconds))
        took(choice, seconds)

    monkeypatch.setattr(engine._chooser, "took", record)
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
