"""Synthetic acceptance is written on everything that a server says, and evaluations refuse it."""

import json

import pytest
from fake_engine import FakeEngine
from fake_server import BODIES, Serve, Served

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.drive import drive

NAME, HEADER = "synthetic_acceptance_length", "x-synthetic-acceptance-length"


def test_every_response_of_synthetic_acceptance_says_so(serve: Serve) -> None:
    http = serve(FakeEngine(synthetic_acceptance_length=2.88)).http
    for path, body in BODIES.items():
        whole = http.post(path, json=body)
        assert whole.headers[HEADER] == "2.88" and whole.json()[NAME] == 2.88
        lines = http.post(path, json=body | {"stream": True}).text.splitlines()
        pieces = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert pieces and all(piece[NAME] == 2.88 for piece in pieces)
    for path in ("/health", "/metrics", "/v1/models", "/nowhere"):
        assert http.get(path).headers[HEADER] == "2.88"
    assert http.post("/v1/completions", json={"prompt": []}).headers[HEADER] == "2.88"
    assert "eagle3:synthetic_acceptance_length{" in http.get("/metrics").text


def test_real_acceptance_has_no_header(fake: Served) -> None:
    for path, body in BODIES.items():
        answer = fake.http.post(path, json=body)
        assert HEADER not in answer.headers and NAME not in answer.json()
    assert "synthetic" not in fake.http.get("/metrics").text


def test_evaluations_refuse_answers_of_synthetic_acceptance() -> None:
    request = Request("0", [1, 2], SamplingParams(max_tokens=4))
    with pytest.raises(ValueError, match="nothing to judge"):
        drive(FakeEngine(synthetic_acceptance_length=2.0), [request])
    assert drive(FakeEngine(), [request])["0"].finish_reason == "length"
