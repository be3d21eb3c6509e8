"""Target features for draft training, from the target's serving pass over packed rows.

Segments go through prefill's call of the model one by one, in chunks of one size and over a paged
cache. Quantised kernels, all experts and the arithmetic of a chunk are those of serving.
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
    """Compile a pass of the target over batches; `chunk` is the number of tokens per model call.

    On the target's mesh each device runs its part of the model. If the mesh has an axis `rows`,
    each also runs its part of the rows.
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
    """Return the uncompiled pass and the target's leaves.

    It takes the leaves and a batch's ids, segments, positions and optional image rows.
    """
    mesh = mesh_of(target)
    leaves, structure = flatten_model(target, mesh)
    run = partial(_rows_features, structure, tuple(aux_layer_ids), chunk, _pool_rows(target, mesh))
    if mesh is not None:
        rows = PartitionSpec(ROWS if ROWS in mesh.axis_names else None)
        specs = tuple(spec_of(variable) for variable in variables(target))
        run = jax.shard_map(run, mesh=mesh, in_specs=(specs, rows), out_specs=rows, check_vma=False)
    return run, leaves


def known_features(batch: PackedBatch) -> Features:
    assert batch.features is not None
    return batch.features


def _pool_rows(target: Target, mesh: Mesh | None) -> list[tuple[int, ...]]:
    """Return the shape of a position's row in each pool on one device."""
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
    dtype = target.dtype
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
    """Run one row of tokens, segments, positions and optional image rows [padded, hidden].

    Chunks run in order, so a chunk overwrites the padding results of the previous one. Each segment
    overwrites the keys and values of the previous segment.
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
