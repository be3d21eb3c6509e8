"""The engine on the GPU's kernels, interpreted, against plain decoding on those of the CPU."""

import logging

import pytest
from driving import Answer, drive, sizes

from eagle3_jax.engine import Engine, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import dispatch

OPERATIONS = (
    *("cache_latents", "absorb_query", "mla_decode", "route", "grouped_mlp"),
    *("cache_heads", "gqa_decode", "logits_argmax"),
)


def needs_no_logits(request: Request) -> bool:
    sampling = request.sampling
    return sampling.temperature == 0 or (sampling.top_p, sampling.top_k) == (1, 0)


@pytest.mark.parametrize("draft", ["grouped"], indirect=True)
def test_kernels_drafts_and_preemption_change_no_token(
    target: Target,
    draft: Eagle3Draft,
    requests: list[Request],
    plain: dict[str, Answer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under the tie rule; none of these requests has a tie. No round writes logits."""
    requests = [request for request in requests if needs_no_logits(request)]
    caplog.set_level(logging.INFO)
    dispatch._say.cache_clear()  # What was said before is not said again.
    engine = Engine(target, draft, sizes(3, kernels="pallas"))
    answers = drive(engine, requests)
    assert engine.stats().num_preemptions > 0
    assert engine.stats().num_accepted_tokens > 0
    for name, answer in answers.items():
        assert answer.token_ids == plain[name].token_ids
    said = {record.getMessage() for record in caplog.records}
    assert said >= {f"{name} runs as pallas" for name in OPERATIONS}
