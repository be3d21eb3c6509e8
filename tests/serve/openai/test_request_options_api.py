"""Options of a body arrive at the engine under their SamplingParams names."""

from typing import Any

import pytest
from fake_server import Served

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams

GIVEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": ({"logit_bias": {"5": 1, "7": -2.5}}, {"logit_bias": ((5, 1.0), (7, -2.5))}),
    "allowed": ({"allowed_token_ids": [3, 5]}, {"allowed_token_ids": (3, 5)}),
    "bad words": (
        {"bad_words": ["ab", " c"]},
        {"bad_words_ids": ((97, 98), (32, 97, 98), (99,), (32, 99))},
    ),
    "repetition": ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    "presence": ({"presence_penalty": -0.5}, {"presence_penalty": -0.5}),
    "frequency": ({"frequency_penalty": 2}, {"frequency_penalty": 2.0}),
    "drafts": ({"speculative": {"num_tokens": 0}}, {"num_speculative_tokens": 0}),
    "nulls": (
        {"logit_bias": None, "bad_words": None, "speculative": None, "presence_penalty": None},
        {},
    ),
    "neutral": ({"logit_bias": {}, "bad_words": [], "speculative": {}}, {}),
}


@pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
@pytest.mark.parametrize("kind", GIVEN)
def test_an_option_reaches_the_engine(
    fake: Served, seen: list[Request], kind: str, chat: bool
) -> None:
    given, expected = GIVEN[kind]
    prompt = {"messages": [{"role": "user", "content": "a"}]} if chat else {"prompt": "a"}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    answer = fake.http.post(path, json={**prompt, **given, "max_tokens": 3, "seed": 1})
    assert answer.status_code == 200, answer.text
    assert seen[0].sampling == SamplingParams(max_tokens=3, seed=1, **expected)


def test_a_salt_reaches_the_engine_from_every_endpoint(fake: Served, seen: list[Request]) -> None:
    messages = [{"role": "user", "content": "a"}]
    for path, body in (
        ("/v1/completions", {"prompt": ["a", "b"], "cache_salt": "x"}),
        ("/v1/chat/completions", {"messages": messages, "cache_salt": "x"}),
        ("/generate", {"text": ["a", "b"], "cache_salt": ["y", "z"]}),
        ("/generate", {"text": "a"}),
    ):
        assert fake.http.post(path, json=body).status_code == 200
    assert [request.cache_salt for request in seen] == ["x", "x", "x", "y", "z", ""]
