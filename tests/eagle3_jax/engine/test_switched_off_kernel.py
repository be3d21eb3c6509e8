"""A kernel that is wrong on some machine is switched off, and the tokens are right again."""

import logging
from typing import Any

import pytest
from driving import drive, sizes

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.kernel_names import OPERATIONS
from eagle3_jax.engine.programs.program import has_argmax
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from pallas_kernels import dispatch
from pallas_kernels.add_norm import pallas

REQUEST = Request("0", [5, 3, 8, 1], SamplingParams(temperature=0.0, max_tokens=6))
OTHERS = tuple(name for name in OPERATIONS if name != "add_norm")
"""Without them a test compiles fast: what is interpreted takes long to trace."""


def tokens(target: Target, *switched_off: str) -> list[int]:
    config = sizes(0, kernels="pallas", xla_kernels=switched_off)
    return drive(Engine(target, None, config), [REQUEST])["0"].token_ids


def test_without_the_broken_kernel_the_tokens_are_the_cpus(
    target: Target,
    plain_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = pallas.add_norm

    def broken(x: Any, *more: Any) -> Any:
        total, normed = run(x, *more)
        return total, -normed

    monkeypatch.setattr(pallas, "add_norm", broken)
    expected = drive(plain_engine, [REQUEST])["0"].token_ids
    assert tokens(target, *OTHERS) != expected
    caplog.set_level(logging.INFO)
    dispatch._say.cache_clear()
    assert tokens(target, *OTHERS, "add_norm") == expected
    said = [record.getMessage() for record in caplog.records if "add_norm" in record.getMessage()]
    assert said == ["add_norm runs as reference (pallas: switched off)"]


def test_without_the_heads_kernel_tokens_are_sampled_from_logits() -> None:
    assert has_argmax(sizes(0, kernels="pallas", xla_kernels=("add_norm",)))
    assert not has_argmax(sizes(0, kernels="pallas", xla_kernels=("logits_argmax",)))
