"""What an engine of 262,144 positions needs beside its pools: nothing that grows with them."""

from typing import Any

import jax
import jax.numpy as jnp
from tiny import tiny_draft, tiny_target

from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.programs.compiled import (
    PairStructure,
    compile_program,
    flatten_model,
    shapes_of,
)
from eagle3_jax.engine.programs.initial_state import state_shapes
from eagle3_jax.engine.programs.packing import empty_chunk
from eagle3_jax.engine.programs.program import ProgramKind

POSITIONS = 262_144


def temporaries(kind: ProgramKind, config: EngineConfig, *inputs: Any) -> int:
    """Bytes that a program of this engine needs while it runs; nothing is allocated or run."""
    target = tiny_target()
    draft = tiny_draft(target)
    leaves, structures = zip(flatten_model(target), flatten_model(draft), strict=True)
    aux_ids = draft.config.aux_layer_ids
    pair = PairStructure(*structures, aux_ids, config.method)
    state = state_shapes(target, draft, config, len(aux_ids))
    program: Any = compile_program(kind, pair, *shapes_of((*leaves, state, *inputs)))
    return program.memory_analysis().temp_size_in_bytes


def test_a_chunk_needs_memory_for_its_own_rows_alone() -> None:
    """As much at 16 times the positions: no score of all of them, no copy of a pool."""
    chunks = [EngineConfig(1, n, 1, prefill_chunk=256) for n in (POSITIONS // 16, POSITIONS)]
    few, many = (temporaries(ProgramKind.PREFILL, c, empty_chunk(c)) for c in chunks)
    assert few == many


def test_a_round_needs_less_than_a_byte_a_position() -> None:
    config = EngineConfig(1, POSITIONS, 1)
    inputs = (jax.ShapeDtypeStruct(s, jnp.int32) for s in ((1,), (1, config.pages_per_seq)))
    assert temporaries(ProgramKind.ROUND, config, *inputs) < POSITIONS
