from typing import Any

import pytest

from eagle3_jax.sampling.params import SamplingParams


def test_one_stop_string_becomes_a_tuple_and_lists_are_frozen():
    assert SamplingParams(stop="\n").stop == ("\n",)
    params = SamplingParams(stop=["a", "bc"], stop_token_ids=[3, 4])
    assert params.stop == ("a", "bc") and params.stop_token_ids == (3, 4)
    assert hash(params) == hash(SamplingParams(stop=("a", "bc"), stop_token_ids=(3, 4)))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"top_k": -2},
        {"top_k": 2**31},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"seed": 2**64},
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"min_tokens": 20, "max_tokens": 10},
        {"stop": ["a", ""]},
        {"stop_token_ids": [-1]},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: 100.5}},
        {"logit_bias": {1: float("nan")}},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [3, -1]},
        {"bad_words_ids": [[]]},
        {"bad_words_ids": [[-1]]},
        {"bad_words_ids": [[1] * 17]},
        {"bad_words_ids": [[1]] * 129},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("inf")},
        {"presence_penalty": 2.1},
        {"frequency_penalty": float("nan")},
        {"num_speculative_tokens": -1},
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_its_name(fields: dict[str, Any]):
    with pytest.raises(ValueError, match=f"^{next(iter(fields))} must be .*; got"):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"top_k": -1},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"seed": -1},
        {"seed": 2**64 - 1},
        {"max_tokens": None, "min_tokens": 500},
        {"logit_bias": {0: -100, 5: 100}},
        {"bad_words_ids": [[1] * 16] * 128},
        {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 1e-3},
        {"num_speculative_tokens": 0},
    ],
    ids=str,
)
def test_values_at_the_edge_are_accepted(fields: dict[str, Any]):
    SamplingParams(**fields)


def test_ids_that_are_allowed_count_once():
    assert SamplingParams(allowed_token_ids=[5, 1, 5]).allowed_token_ids == (1, 5)
