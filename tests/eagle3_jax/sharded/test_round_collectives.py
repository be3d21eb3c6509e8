"""What devices tell each other in a round, counted in the compiled program."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from driving import sizes
from tiny import tiny_draft, tiny_target
from wide_pair import WIDE_DRAFT, WIDE_TARGET

from eagle3_jax.engine.programs.compiled import (
    PairStructure,
    compile_program,
    flatten_model,
    shapes_of,
)
from eagle3_jax.engine.programs.initial_state import initial_state
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.mesh import make_mesh, shard
from pallas_kernels.aot.collectives import Collective, collectives

K, BATCH = 3, 4
ROWS = BATCH * (K + 1)


def of_a_round(layers: int, by_expert: bool) -> list[Collective]:
    """Of the lean round of a pair whose target has so many layers, on 8 devices."""
    mesh = make_mesh(8, enable_expert_parallel=by_expert)
    target = tiny_target(config=replace(WIDE_TARGET, num_hidden_layers=layers))
    draft = tiny_draft(target, config=WIDE_DRAFT)
    shard(target, mesh)
    shard(draft, mesh)
    aux, config = draft.config.aux_layer_ids, sizes(K)
    weights, structure = flatten_model(target, mesh)
    draft_weights, draft_structure = flatten_model(draft, mesh)
    pair = PairStructure(structure, draft_structure, aux)
    state = initial_state(target, draft, config, len(aux), mesh)
    slots = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    table = jax.ShapeDtypeStruct((BATCH, config.pages_per_seq), jnp.int32)
    held = shapes_of((weights, draft_weights, state))
    program: Any = compile_program(ProgramKind.ROUND, pair, *held, slots, table)
    return collectives(program.as_text())


@pytest.mark.parametrize("by_expert", [False, True])
def test_a_layer_adds_two_sums_and_nothing_gathers_logits_or_weights(by_expert: bool) -> None:
    fewer, more = of_a_round(2, by_expert), of_a_round(3, by_expert)
    wide = [c for c in more if c.shape[-1:] == (WIDE_TARGET.hidden_size,)]
    assert {c.kind for c in wide} == {"all-reduce"}
    assert len(wide) - sum(c.shape[-1:] == (WIDE_TARGET.hidden_size,) for c in fewer) == 2
    # Attention and feed-forward of 3 layers and of the draft's k passes, and k + 1 lookups.
    assert len(wide) == 2 * 3 + 2 * K + K + 1
    assert len(more) - len(fewer) == 2
    # Of all else, pairs of a score and an id from 8 devices are the most a row takes.
    others = [c for c in more if c not in wide]
    assert max(c.nbytes for c in others) <= ROWS * 8 * 15 * 4
