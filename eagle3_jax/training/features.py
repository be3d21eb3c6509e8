"""What a frozen target shows a draft: its own serving pass, over packed rows.

Segment after segment goes through prefill's call of the model, in chunks of one size and over a
paged cache: quantised kernels, all experts and the arithmetic of a chunk are serving's.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from eagle3_jax.cache import KVPools, view_pages
from eagle3_jax.engine.programs.compiled import Leaves, Structure, flatten_model
from eagle3_jax.mesh import mesh_of, parts, spec_of, variables
from eagle3_jax.models.target import Target
from eagle3_jax.training.packing import Features, PackedBatch
from eagle3_jax.training.placement import ROWS
from pallas_kernels import gpu

PAGE_SIZE = 16


def feature_pass(
    target: Target, aux_layer_ids: Sequence[int], chunk: int
) -> Callable[[PackedBatch], Features]:
    """A compiled pass of the target over batches; chunk: tokens that one call of the model takes.

    On the target's mesh each device runs its part of the model, and where that mesh has an axis
    `rows`, on its part of the rows.
    """
    run, leaves = feature_program(target, aux_layer_ids, chunk)
    compiled = jax.jit(run, compiler_options=gpu.compiler_options())

    def features(batch: PackedBatch) -> Features:
        rows = batch.token_ids, batch.segments, batch.positions
        images = () if batch.image_rows is None else (batch.image_rows,)
        return compiled(leaves, (*rows, *images))

    return features


def feature_program(
    target: Target, aux_layer_ids: Sequence[int], chunk: int
) -> tuple[Callable[[Leaves, Any], Features], Leaves]:
    """That pass before it is compiled, a function of the target's leaves and of a batch's ids,
    segments, positions and, if any, rows of images; and these leaves."""
    mesh = mesh_of(target)
    leaves, structure = flatten_model(target, mesh)
    run = partial(_rows_features, structure, tuple(aux_layer_ids), chunk, _pool_rows(target, mesh))
    if mesh is not None:
        rows = PartitionSpec(ROWS if ROWS in mesh.axis_names else None)
        specs = tuple(spec_of(variable) for variable in variables(target))
        run = jax.shard_map(run, mesh=mesh, in_specs=(specs, rows), out_specs=rows, check_vma=False)
    return run, leaves


def known_features(batch: PackedBatch) -> Features:
    """What the batch's samples came with."""
    assert batch.features is not None
    return batch.features


def _pool_rows(target: Target, mesh: Mesh | None) -> list[tuple[int, ...]]:
    """Shape of a position's row in each pool, as one device holds it."""
    return [
        tuple(
            size // (1 if mesh is None or axes is None else parts(mesh, axes))
            for size, axes in zip(row, split, strict=True)
        )
        for row, split in zip(target.pool_rows, target.pool_splits, strict=True)
    ]


def _rows_features(
    structure: Structure,
    aux_layer_ids: tuple[int, ...],
    chunk: int,
    pool_rows: list[tuple[int, ...]],
    leaves: Leaves,
    rows: tuple[Array, ...],
) -> Features:
    target: Target = structure.rebuild(leaves)
    length, hidden = rows[0].shape[1], target.config.hidden_size
    dtype = target.embed_tokens.embedding.get_value().dtype
    pages = -(-length // PAGE_SIZE) + 1
    pools = tuple(jnp.zeros((pages, PAGE_SIZE, *row), dtype) for row in pool_rows)
    padded = [jnp.pad(part, ((0, 0), (0, chunk), *((0, 0),) * (part.ndim - 2))) for part in rows]

    def row_features(pools: KVPools, row: Any) -> tuple[KVPools, Features]:
        empty = Features(
            jnp.zeros((length + chunk, len(aux_layer_ids) * hidden), dtype),
            jnp.zeros((length + chunk, hidden), dtype),
        )
        return _row_features(target, aux_layer_ids, chunk, pools, row, empty)

    _, found = jax.lax.scan(row_features, pools, tuple(padded))
    return jax.tree.map(lambda x: x[:, :length], found)


def _row_features(
    target: Target,
    aux_layer_ids: tuple[int, ...],
    chunk: int,
    pools: KVPools,
    row: tuple[Array, ...],
    empty: Features,
) -> tuple[KVPools, Features]:
    """One row: tokens, segments, positions and, if any, rows of images [padded, hidden].

    Chunks come in order, so that what one leaves behind its last token is overwritten by the next;
    a segment's keys and values are written over those of the one before.
    """
    tokens, segments, positions, *images = row
    offsets = jnp.arange(chunk)
    begins = (positions % chunk == 0) & (segments > 0)
    (starts,) = jnp.nonzero(begins, size=len(tokens), fill_value=0)
    table = jnp.arange(1, pools[0].shape[0])[None]

    def run_chunk(index: Array, state: tuple[KVPools, Features]) -> tuple[KVPools, Features]:
        pools, found = state
        at = starts[index]
        cut = partial(jax.lax.dynamic_slice_in_dim, start_index=at, slice_size=chunk)
        size = jnp.sum(cut(segments) == segments[at])
        places = (positions[at] + jnp.minimum(offsets, size - 1))[None]
        pages = view_pages(table, places, (offsets < size)[None], PAGE_SIZE)
        shown = [cut(image_rows)[None] for image_rows in images]
        hidden, aux, pools = target(cut(tokens)[None], places, aux_layer_ids, pools, pages, *shown)
        put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=at, axis=0)
        return pools, Features(put(found.aux, aux[0]), put(found.hidden, hidden[0]))

    return jax.lax.fori_loop(0, jnp.sum(begins), run_chunk, (pools, empty))
