"""Beside its pools an engine of 262,144 positions needs no memory that grows with positions."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params
from setups import Setup, pair_on_devices
from sweeps import sweep
from tiny import tiny_target

from eagle3_jax.cache import view_pages
from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.programs.compiled import (
    PairStructure,
    compile_program,
    flatten_model,
    shapes_of,
)
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.engine.programs.packing import empty_chunk, pack_page_table
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.layers.rope import RopeTables
from eagle3_jax.layers.split_context import GATHERED_SLOTS
from eagle3_jax.mesh import mesh_of
from eagle3_jax.sampling.params import SamplingParams
from pallas_kernels import gpu
from pallas_kernels.dispatch import prefer

POSITIONS = 262_144


def test_a_page_table_has_each_sequences_pages_and_scratch_elsewhere() -> None:
    config, sequences = EngineConfig(max_model_len=64), []
    for name, pages in (("a", [3, 1, 70_000]), ("b", [2])):
        request = Request(name, [1, 2], SamplingParams())
        sequences.append(Sequence.of(request, (), config.max_model_len, None))
        sequences[-1].pages.extend(pages)
    table = pack_page_table(sequences, 3, config)
    assert table.tolist() == [[3, 1, 70_000, 0], [2, 0, 0, 0], [0, 0, 0, 0]]
    # As bytes: from a list of 16 thousand the table takes half a millisecond, each round.
    assert all(memoryview(sequence.pages).itemsize == 4 for sequence in sequences)


def temporaries(kind: ProgramKind, config: EngineConfig, *inputs: Any) -> int:
    """Bytes that a program of this engine needs while it runs, on each of the devices that divide
    its contexts; nothing is allocated or run."""
    parts = config.decode_context_parallel_size
    target, draft = pair_on_devices(Setup(parts, False, "latent", "float32", True))
    mesh = mesh_of(target)
    target_leaves, of_target = flatten_model(target, mesh)
    draft_leaves, of_draft = flatten_model(draft, mesh)
    aux_ids = draft.config.aux_layer_ids
    pair = PairStructure(of_target, of_draft, aux_ids, config.method)
    state = StateLayout(target, draft, config, len(aux_ids), mesh).shapes()
    shapes = shapes_of((target_leaves, draft_leaves, state, *inputs))
    program: Any = compile_program(kind, pair, *shapes)
    return program.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("parts", sweep([1, 2], [1]))
def test_a_chunk_needs_memory_for_its_own_rows_alone(parts: int) -> None:
    """It is as much with 8 times the positions: there is no array of scores of all positions, no
    copy of a pool, and only one gathered piece of a context at a time."""
    divided: dict[str, Any] = {"decode_context_parallel_size": parts, "page_size": 16 // parts}
    chunks = [
        EngineConfig(1, n, 1, prefill_chunk=256, **divided) for n in (POSITIONS // 8, POSITIONS)
    ]
    # Interpreted, a kernel's grid has copies of its inputs.
    with prefer("xla"):
        few, many = (temporaries(ProgramKind.PREFILL, c, empty_chunk(c)) for c in chunks)
    assert few == many


def largest_array(positions: int) -> int:
    """Numbers in the largest that latent attention of a chunk makes with the GPU's kernels, where
    page tables have so many positions and the pool has few pages."""
    attention: Any = tiny_target().layers[0].self_attn
    pool, rows = jax.ShapeDtypeStruct((9, 16, *attention.pool_rows[0]), jnp.float32), 256

    def attend(x: Any, pool: Any, table: Any, at: Any) -> Any:
        half = attention.config.qk_rope_head_dim // 2
        tables = RopeTables(*(jnp.ones((1, rows, half)) for _ in range(2)))
        pages = view_pages(table, at, at >= 0, 16)
        return attention(x, tables, (pool,), pages)[0]

    x = jax.ShapeDtypeStruct((1, rows, attention.config.input_size), jnp.float32)
    table = jax.ShapeDtypeStruct((1, positions // 16), jnp.int32)
    with gpu.assume("gfx950", compiling=True), prefer("pallas"):
        jaxpr = jax.make_jaxpr(attend)(x, pool, table, jax.ShapeDtypeStruct((1, rows), jnp.int32))
    made = [out.aval.size for eqn in equations(jaxpr.jaxpr) for out in eqn.outvars]
    return max(made)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a program and of its nested programs, except kernels."""
    for eqn in jaxpr.eqns:
        yield eqn
        if eqn.primitive.name != "pallas_call":
            for inner in jaxprs_in_params(eqn.params):
                yield from equations(inner)


def test_keys_and_values_are_made_of_a_bounded_part_of_a_context() -> None:
    """By the GPU's kernels on one device, which make them of latents: those of 16,384 slots."""
    config: Any = tiny_target().config
    each = config.num_attention_heads * max(config.qk_nope_head_dim, config.v_head_dim)
    sizes = [largest_array(n) for n in (GATHERED_SLOTS, 2 * GATHERED_SLOTS, POSITIONS)]
    assert sizes == [GATHERED_SLOTS * each] * 3


def test_a_round_needs_less_than_a_byte_a_position() -> None:
    config = EngineConfig(1, POSITIONS, 1)
    inputs = (jax.ShapeDtypeStruct(s, jnp.int32) for s in ((1,), (1, config.pages_per_seq)))
    assert temporaries(ProgramKind.ROUND, config, *inputs) < POSITIONS
