"""Options report the same log-probabilities on several devices; tests/worlds has the tokens."""

from typing import Any

import pytest
from driving import drive, sizes
from setups import Setup, pair_on_devices, pair_on_replicas
from sweeps import sweep
from wide_pair import wide_target

from eagle3_jax.engine import Engine, Request
from eagle3_jax.sampling.params import SamplingParams

K = 3


@pytest.mark.parametrize("replicas", sweep([1, 4], [1]))
def test_options_that_look_at_tokens_mean_the_same_on_devices(replicas: int) -> None:
    kinds: list[dict[str, Any]] = [
        {"logit_bias": {3: 4.0, 90: 4.0}, "bad_words_ids": [[5], [90, 3]]},
        {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"allowed_token_ids": list(range(1, 96, 3)), "min_tokens": 6, "stop_token_ids": [7, 40]},
        {"logprobs": 5, "prompt_logprobs": 3, "top_p": 0.7, "top_k": 9, "min_p": 0.01},
    ]
    requests = [
        Request(f"{i}", [i + 1, 2 * i, 60], SamplingParams(seed=i, max_tokens=16, **kind))
        for i, kind in enumerate(kinds)
    ]
    setup = Setup(4, True, "grouped", "float32", True)
    pair = pair_on_devices(setup) if replicas == 1 else pair_on_replicas(replicas, 1, "grouped")
    split = drive(Engine(*pair, sizes(K, data_parallel_size=replicas)), requests)
    whole = drive(Engine(wide_target(), None, sizes(0)), requests)
    assert {n: a.token_ids for n, a in split.items()} == {n: a.token_ids for n, a in whole.items()}
    ours, theirs = ([e for o in run["3"].outputs for e in o.logprobs] for run in (split, whole))
    for one, other in zip(ours, theirs, strict=True):
        assert list(one) == list(other)
        for token in one:
            assert one[token].rank == other[token].rank
            assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)
