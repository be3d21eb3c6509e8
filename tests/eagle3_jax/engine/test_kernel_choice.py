"""Choice of an operation's implementation in a program, and its consequences."""

import inspect
import logging
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from driving import drive, sizes
from flax import nnx
from tiny import DRAFT, TARGET

import pallas_kernels
from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.config import OPERATIONS
from eagle3_jax.engine.programs import compiled
from eagle3_jax.engine.programs.compiled import (
    FUNCTIONS,
    PairStructure,
    Structure,
    compile_program,
    flatten_model,
    shapes_of,
)
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.engine.programs.program import ProgramKind, has_argmax
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from pallas_kernels import dispatch
from pallas_kernels.add_norm import ADD_NORM
from pallas_kernels.dispatch import asks_for_exact_bits, prefer

REQUEST = Request("0", [5, 3, 8, 1], SamplingParams(temperature=0.0, max_tokens=6))
OTHERS = tuple(name for name in OPERATIONS if name != "add_norm")
"""Without them a test compiles fast: what is interpreted takes long to trace."""


def tokens(target: Target, *switched_off: str) -> list[int]:
    """The answer without these kernels."""
    config = sizes(0, kernels="pallas", xla_kernels=switched_off)
    return drive(Engine(target, None, config), [REQUEST])["0"].token_ids


def test_a_wrong_kernel_can_be_switched_off_and_the_tokens_are_the_cpus(
    target: Target,
    plain_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(x: Any, *more: Any) -> Any:
        total, normed = ADD_NORM.pallas(x, *more)
        return total, -normed

    wrong = replace(ADD_NORM, pallas=broken)
    monkeypatch.setattr(sys.modules["pallas_kernels.add_norm"], "ADD_NORM", wrong)
    expected = drive(plain_engine, [REQUEST])["0"].token_ids
    assert tokens(target, *OTHERS) != expected
    caplog.set_level(logging.INFO)
    dispatch._log_choice.cache_clear()
    assert tokens(target, *OTHERS, "add_norm") == expected
    said = [record.getMessage() for record in caplog.records if "add_norm" in record.getMessage()]
    assert said == ["add_norm runs as reference (pallas: switched off)"]


def test_without_the_heads_kernel_tokens_are_sampled_from_logits() -> None:
    assert has_argmax(sizes(0, kernels="pallas", xla_kernels=("add_norm",)))
    assert not has_argmax(sizes(0, kernels="pallas", xla_kernels=("logits_argmax",)))


def test_the_names_are_those_of_all_operations_that_have_an_implementation_to_choose() -> None:
    public = {name: getattr(pallas_kernels, name) for name in dir(pallas_kernels)}
    chosen = {
        name
        for name, value in public.items()
        if inspect.isfunction(value) and "implementation" in inspect.signature(value).parameters
    }
    assert set(OPERATIONS) == chosen


def test_kernels_are_asked_for_exact_bits_in_exact_mode_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def program(*_: Any, **__: Any) -> Callable[..., Any]:
        def function(*arrays: Any) -> Any:
            asked.append(asks_for_exact_bits())
            return arrays

        return function

    monkeypatch.setattr(compiled, "program", program)
    for exact in (False, True):
        pair = PairStructure(Structure(None, None), None, (), exact=exact)
        compile_program(ProgramKind.ROUND, pair, *[jax.ShapeDtypeStruct((1,), jnp.float32)] * 3)
    assert asked == [False, True] and not asks_for_exact_bits()


VOCAB, BATCH, K = 150, 4, 3
"""A vocabulary of a size that nothing else has."""
FLOATS = re.compile(rf"tensor<((?:\d+x)+){VOCAB}x(?:f32|bf16|f16)>")


def logits_of(kind: ProgramKind) -> set[str]:
    """Shapes of the program's float arrays over the vocabulary with as many rows as it decides.

    Only the head's kernel is interpreted, and inlined: the others take ten seconds to trace.
    """
    target = nnx.eval_shape(lambda: KimiTarget(replace(TARGET, vocab_size=VOCAB), rngs=nnx.Rngs(0)))
    config = replace(DRAFT, vocab_size=VOCAB, draft_vocab_size=VOCAB)
    draft = nnx.eval_shape(lambda: Eagle3Draft(config, rngs=nnx.Rngs(0)))
    engine = sizes(K)
    state = StateLayout(target, draft, engine, len(config.aux_layer_ids)).shapes()
    (target_leaves, target_rest), (draft_leaves, draft_rest) = map(flatten_model, (target, draft))
    pair = PairStructure(target_rest, draft_rest, config.aux_layer_ids)
    batch = jax.ShapeDtypeStruct((BATCH,), int), jax.ShapeDtypeStruct((BATCH, 18), int)
    inputs = (*shapes_of((target_leaves, draft_leaves)), state, *batch)
    with prefer("pallas", tuple(name for name in OPERATIONS if name != "logits_argmax")):
        text = jax.jit(partial(FUNCTIONS[kind], pair)).lower(*inputs).as_text()
    found = set(FLOATS.findall(text))
    rows = {BATCH, BATCH * (K + 1)}
    return {shape for shape in found if math.prod(map(int, shape.split("x")[:-1])) in rows}


@pytest.mark.parametrize(
    ("kind", "writes"), [(ProgramKind.ARGMAX_ROUND, False), (ProgramKind.ROUND, True)]
)
def test_only_the_lean_round_writes_the_targets_logits(kind: ProgramKind, writes: bool) -> None:
    """In the lowered program, before XLA optimises it."""
    assert logits_of(kind) == ({"4x4x"} if writes else set())
