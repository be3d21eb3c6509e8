"""Offline generation on the simulated device."""

from typing import Any

import pytest
from simulated_device import simulated_pair

from eagle3_jax.generation import expand, generate
from eagle3_jax.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


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
        (GREEDY, {"method": "blocks"}, "one of coupled, standard, block, synthetic; got 'blocks'"),
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
