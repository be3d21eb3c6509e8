"""What a round of the kernels writes over the vocabulary: nothing, where kernels choose tokens."""

import math
import re
from dataclasses import replace
from functools import partial

import jax
import pytest
from driving import sizes
from flax import nnx
from tiny import DRAFT, TARGET

from eagle3_jax.engine.programs.compiled import FUNCTIONS, PairStructure, flatten_model, shapes_of
from eagle3_jax.engine.programs.initial_state import initial_state
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from pallas_kernels.dispatch import prefer

VOCAB, BATCH, K = 150, 4, 3
"""A vocabulary of a size that nothing else has."""
FLOATS = re.compile(rf"tensor<((?:\d+x)+){VOCAB}x(?:f32|bf16|f16)>")


def logits_of(kind: ProgramKind, kernels: str) -> set[str]:
    """Shapes of the program's float arrays over the vocabulary with as many rows as it decides."""
    target = nnx.eval_shape(lambda: KimiTarget(replace(TARGET, vocab_size=VOCAB), rngs=nnx.Rngs(0)))
    config = replace(DRAFT, vocab_size=VOCAB, draft_vocab_size=VOCAB)
    draft = nnx.eval_shape(lambda: Eagle3Draft(config, rngs=nnx.Rngs(0)))
    engine = sizes(K)
    state = jax.eval_shape(lambda: initial_state(target, draft, engine, len(config.aux_layer_ids)))
    (target_leaves, target_rest), (draft_leaves, draft_rest) = map(flatten_model, (target, draft))
    pair = PairStructure(target_rest, draft_rest, config.aux_layer_ids)
    batch = jax.ShapeDtypeStruct((BATCH,), int), jax.ShapeDtypeStruct((BATCH, 18), int)
    inputs = (*shapes_of((target_leaves, draft_leaves)), state, *batch)
    with prefer(kernels):
        text = jax.jit(partial(FUNCTIONS[kind], pair)).lower(*inputs).as_text()
    found = set(FLOATS.findall(text))
    rows = {BATCH, BATCH * (K + 1)}
    return {shape for shape in found if math.prod(map(int, shape.split("x")[:-1])) in rows}


@pytest.mark.parametrize(
    ("kind", "writes"), [(ProgramKind.ARGMAX_ROUND, False), (ProgramKind.ROUND, True)]
)
def test_only_the_lean_round_writes_the_targets_logits(kind: ProgramKind, writes: bool) -> None:
    """As lowered, before XLA could take any away. The kernels are interpreted, and written out."""
    found = logits_of(kind, "pallas")
    assert found == ({"4x4x"} if writes else set())


def test_a_round_without_kernels_writes_the_drafts_logits_too() -> None:
    assert logits_of(ProgramKind.ROUND, "xla") >= {"4x4x", "4x1x"}
