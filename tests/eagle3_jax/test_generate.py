"""Offline generation, from golden transcripts of another implementation and by its contract."""

from typing import Any

import pytest
from oracle_files import ORACLES, golden_json
from simulated_device import simulated_pair
from tolerances import CLEAR_MARGIN

from convert import load_draft, load_target
from eagle3_jax.generation import expand, generate
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


@pytest.fixture(scope="module")
def golden_target() -> Target:
    return load_target(ORACLES / "kimi_bf16", dtype="float32")


@pytest.mark.parametrize(
    ("name", "setting", "k"),
    [
        ("draft_mha_bf16", "steps3_topk1_tokens4", 3),
        ("draft_mha_d2t_bf16", "steps6_topk1_tokens7", 6),
    ],
)
def test_tokens_and_accepted_counts_are_those_of_eagles_own_loop(
    golden_target: Target, name: str, setting: str, k: int
) -> None:
    """Except in the last round, whose drafts shrink with the room that is left."""
    draft = load_draft(ORACLES / name, golden_target, dtype="float32")
    transcripts = golden_json(name)["transcripts"][setting]
    clear = [t for t in transcripts if t["min_draft_margin"] > CLEAR_MARGIN]
    assert len(clear) >= 3
    prompts = [t["prompt"] for t in clear]
    lengths = [1 + sum(s["accepted"] + 1 for s in t["steps"]) for t in clear]
    sampling = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths
    ]
    answers = generate(golden_target, draft, prompts, sampling, num_speculative_tokens=k)
    for transcript, answer in zip(clear, answers, strict=True):
        first = transcript["steps"][0]["candidates"][0][0]
        expected = [first]
        for step in transcript["steps"]:
            expected += [*step["candidates"][step["best"]][1 : step["accepted"] + 1], step["next"]]
        assert answer.token_ids == expected
        accepted = [step["accepted"] for step in transcript["steps"]]
        assert answer.accepted[: len(accepted) - 2] == accepted[:-2]
        assert sum(a + 1 for a in answer.accepted) + 1 == len(expected)


def test_siblings_use_the_seeds_that_follow_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = simulated_pair(monkeypatch)
    prompts = [[1, 2, 3], [4]]
    siblings = generate(*pair, prompts, SamplingParams(n=3, seed=40, max_tokens=12))
    assert [one.seed for one in siblings] == [40, 41, 42] * 2
    assert len({tuple(one.token_ids) for one in siblings}) == 6
    for seed in (40, 41, 42):
        alone = generate(*pair, prompts, SamplingParams(seed=seed, max_tokens=12))
        assert [one.token_ids for one in alone] == [
            one.token_ids for one in siblings if one.seed == seed
        ]


def test_unseeded_siblings_draw_their_own_seeds() -> None:
    requests = expand("a", [1], SamplingParams(n=2))
    assert [request.sampling.seed for request in requests] == [None, None]
    assert len({request.request_id for request in requests}) == 2


@pytest.mark.parametrize(
    ("sampling", "options", "message"),
    [
        (GREEDY, {"method": "block"}, "must be one of coupled, standard, synthetic; got 'block'"),
        (GREEDY, {"method": "standard", "exact": True}, "exact mode promises"),
        (GREEDY, {"method": "synthetic"}, "got 0 of them"),
        (GREEDY, {"synthetic_acceptance_length": 2.0}, "need rejection_sample_method 'synthetic'"),
        ([GREEDY], {}, "2 prompts but 1 sampling"),
        (SamplingParams(max_tokens=None), {}, "needs max_tokens"),
        (SamplingParams(stop="a"), {}, "tokenizer"),
        (GREEDY, {"num_speculative_tokens": 99}, "0..8, got 99"),
    ],
)
def test_what_cannot_run_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    sampling: SamplingParams | list[SamplingParams],
    options: dict[str, Any],
    message: str,
) -> None:
    pair = simulated_pair(monkeypatch)
    with pytest.raises(ValueError, match=message):
        generate(*pair, [[1], [2]], sampling, **options)


def test_no_prompts_give_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert generate(*simulated_pair(monkeypatch), [], GREEDY) == []
