"""Options of a body that are no SamplingParams as they stand; test_option_table has the others."""

from typing import Any

import pytest
from fake_server import Served

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams

HELLO = [{"role": "user", "content": "a"}]
GIVEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": ({"logit_bias": {"5": 1, "7": -2.5}}, {"logit_bias": ((5, 1.0), (7, -2.5))}),
    "bad words": (
        {"bad_words": ["ab", " c"]},
        {"bad_words_ids": ((97, 98), (32, 97, 98), (99,), (32, 99))},
    ),
    "drafts": ({"speculative": {"num_tokens": 0}}, {"num_speculative_tokens": 0}),
    "nulls": (
        {"logit_bias": None, "bad_words": None, "speculative": None, "presence_penalty": None},
        {},
    ),
    "neutral": ({"logit_bias": {}, "bad_words": [], "speculative": {}}, {}),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_an_option_reaches_the_engine(fake: Served, seen: list[Request], kind: str) -> None:
    given, expected = GIVEN[kind]
    fake.ask("/v1/completions", prompt="a", max_tokens=3, seed=1, **given)
    fake.ask("/v1/chat/completions", messages=HELLO, max_tokens=3, seed=1, **given)
    assert [request.sampling for request in seen] == [
        SamplingParams(max_tokens=3, seed=1, **expected)
    ] * 2


def test_a_salt_reaches_the_engine_from_every_endpoint(fake: Served, seen: list[Request]) -> None:
    fake.ask("/v1/completions", prompt=["a", "b"], cache_salt="x")
    fake.ask("/v1/chat/completions", messages=HELLO, cache_salt="x")
    fake.ask("/generate", text=["a", "b"], cache_salt=["y", "z"])
    fake.ask("/generate", text="a")
    assert [request.cache_salt for request in seen] == ["x", "x", "x", "y", "z", ""]
