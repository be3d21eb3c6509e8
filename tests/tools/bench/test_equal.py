"""The identity check: it passes on a sound pair and fails on what it is there to find."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from setups import Setup, pair_on_devices
from simulated_device import SimulatedRunner
from small_pair import PROMPTS, TARGET, small_pair

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.programs.runner import RowReport
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.equality.cases import Case, full_plan, quick_plan
from eagle3_tools.bench.equality.ties import Difference, Scorer
from eagle3_tools.bench.studies import equal
from eagle3_tools.bench.studies.equal import SETTINGS, CaseResult, check_equal, summarize
from serve.pair.loading import LoadedPair

VOCAB = TARGET.vocab_size
SOUND = CaseResult(
    name="k=3, batch 8",
    reference=False,
    exact=False,
    compared=600,
    identical=600,
    differences=[],
    preemptions=0,
    tokens=1,
    seconds=0.0,
)
TIE = Difference("prompt 0, greedy", 4, (1, 2), "score", 5e-5, math.inf)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> LoadedPair:
    """A pair whose engines run on the simulated device."""
    monkeypatch.setattr("simulated_device.VOCAB", VOCAB)
    monkeypatch.setattr("eagle3_jax.engine.engine.Runner", SimulatedRunner)
    return small_pair()


def test_engines_of_a_sound_device_give_equal_outputs(pair: LoadedPair) -> None:
    result = check_equal(pair, PROMPTS[:3], quick_plan(k=2, batch=2), max_tokens=24)
    assert result.failures == []
    assert result.holds
    assert result.compared == 6 * 3 * len(SETTINGS)
    forced = [case for case in result.cases if "preempted" in case.name]
    assert len(forced) == 3
    assert all(case.preemptions for case in forced)


def test_a_token_that_differs_with_drafts_fails_every_case_that_drafts(
    pair: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = SimulatedRunner.round

    def spoiled(self: SimulatedRunner, *round_of: Any) -> list[RowReport]:
        reports = sound(self, *round_of)
        wrong = int(self.has_draft)
        return [RowReport([(t + wrong) % VOCAB for t in r.token_ids], r.verified) for r in reports]

    monkeypatch.setattr(SimulatedRunner, "round", spoiled)
    monkeypatch.setattr(SimulatedRunner, "_check", lambda self, *_, **__: None)
    monkeypatch.setattr(equal, "Scorer", lambda *_: SimpleNamespace(differences=errors))
    result = check_equal(pair, PROMPTS[:3], quick_plan(k=2, batch=2), max_tokens=24)
    assert not result.holds
    drafting = {case.name for case in result.cases if "plain" not in case.name}
    assert {failure.partition(":")[0] for failure in result.failures} == drafting


def errors(requests: list[Request], *answers: list[list[int]]) -> list[Difference]:
    return [replace(TIE, cause=None) for _, a, b in zip(requests, *answers, strict=True) if a != b]


def test_engines_divide_contexts_over_as_many_devices_as_asked(
    pair: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs: list[EngineConfig] = []

    def engine(target: object, draft: object, config: EngineConfig, **_: object) -> None:
        configs.append(config)
        raise InterruptedError

    monkeypatch.setattr(equal, "Engine", engine)
    with pytest.raises(InterruptedError):
        check_equal(pair, PROMPTS, quick_plan(), max_tokens=24, context_parts=2)
    assert configs[0].decode_context_parallel_size == 2
    assert configs[0].page_tokens == equal.PAGE_SIZE


def test_scores_of_several_devices_tell_a_tie_from_an_error() -> None:
    target, _ = pair_on_devices(Setup(2, False, "latent", "float32", True))
    first, second = ([[1, 2, 3]], [[1, 2, 4]])
    request = Request("a", PROMPTS[0], SamplingParams(seed=0))
    (found,) = Scorer(target, 32).differences([request], first, second)
    assert found.cause is None


def test_the_full_plan_covers_every_k_batch_preemption_and_both_modes() -> None:
    groups = full_plan()
    free, exact = groups[0], groups[1:]
    assert free.reference == Case(0, 1, speculative=False)
    covered = {(c.num_speculative_tokens, c.batch) for c in (free.reference, *free.others)}
    assert covered == {(k, batch) for k in (0, 1, 3, 6) for batch in (1, 8)}
    assert any(case.again for case in free.others)
    assert any(case.few_pages and case.speculative for case in free.others)
    assert {g.reference.num_speculative_tokens for g in exact} == {1, 3, 6}
    for group in exact:
        assert not group.reference.speculative
        for case in group.others:
            assert case.exact
            assert case.batch == group.reference.batch
            assert case.num_speculative_tokens == group.reference.num_speculative_tokens
    assert any(case.few_pages and case.speculative for group in exact for case in group.others)


@pytest.mark.parametrize(
    ("ties", "failures", "holds"),
    [(0, [], True), (2, [], True), (3, [], False), (0, ["no"], False)],
)
def test_at_most_one_answer_in_500_may_differ_by_a_tie_and_no_case_may_fail(
    ties: int, failures: list[str], holds: bool
) -> None:
    case = replace(SOUND, identical=600 - ties, differences=[TIE] * ties, failures=failures)
    result = summarize([replace(SOUND, reference=True), case], 200, 64)
    assert (result.compared, result.ties, result.holds) == (600, ties, holds)
