"""Programs beside the lean round say on several devices what they say on one."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from driving import drive, sizes
from engine_requests import mixed_requests
from tiny import VOCAB, reduced_draft
from wide_pair import DRAFTS, wide_target

from eagle3_jax.engine import Engine, Request
from eagle3_jax.mesh import make_mesh, shard

FULL: list[dict[str, Any]] = [
    {"logprobs": 20, "prompt_logprobs": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"logprobs": 5, "logprobs_mode": "processed_logprobs", "logit_bias": {3: 4.0, 90: -100.0}},
    {"allowed_token_ids": range(0, VOCAB, 3), "min_tokens": 6, "stop_token_ids": range(3, 60, 9)},
    {"bad_words_ids": [[5], *([a, b] for a in range(0, VOCAB, 8) for b in (1, 9))]},
]
TREE = {"eagle_topk": 3, "num_draft_tokens": 6}
STANDARD = {"rejection_sample_method": "standard"}


def answers(devices: int, draft: str, requests: list[Request], **changes: Any) -> Any:
    """Tokens, how many drafts each round accepted, and logprobs; 1: not on a mesh at all."""
    target = wide_target()
    proposer = (DRAFTS | {"reduced": reduced_draft})[draft](target)
    if devices > 1:
        mesh = make_mesh(devices)
        shard(target, mesh)
        shard(proposer, mesh)
    found = drive(Engine(target, proposer, sizes(2, **changes)), requests)
    return {
        name: ((answer.token_ids, answer.accepted), [o.logprobs for o in answer.outputs])
        for name, answer in found.items()
    }


@pytest.mark.parametrize(
    ("devices", "draft", "options", "changes"),
    [
        (8, "latent", FULL, {}),
        (8, "grouped", [{}, {}], TREE),
        (2, "reduced", [{}, {}], STANDARD),
    ],
    ids=["full", "tree", "rejection"],
)
def test_devices_change_neither_tokens_nor_logprobs(
    devices: int, draft: str, options: list[dict[str, Any]], changes: dict[str, Any]
) -> None:
    requests = [
        replace(request, sampling=replace(request.sampling, max_tokens=14, **chosen))
        for request, chosen in zip(mixed_requests(len(options)), options, strict=True)
    ]
    found = answers(devices, draft, requests, **changes)
    expected = answers(1, draft, requests, **changes)
    for name, (decided, logprobs) in expected.items():
        assert found[name][0] == decided
        jax.tree.map(partial(np.testing.assert_allclose, atol=2e-4), found[name][1], logprobs)
    assert any(count for (_, accepted), _ in expected.values() for count in accepted)
