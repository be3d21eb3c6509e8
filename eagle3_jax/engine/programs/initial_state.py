"""What the device holds before the first program runs."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_jax.cache import KVPool, KVPools, QuantizedPool
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.scales import pool_scales
from eagle3_jax.mesh import MeshAxes
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.logit_control_rows import empty_controls
from eagle3_jax.speculative.state import DecodeState, empty_slots


def initial_state(
    target: Target,
    draft: Eagle3Draft | None,
    config: EngineConfig,
    num_aux: int,
    mesh: Mesh | None = None,
) -> DecodeState:
    """Empty pools and finished slots (one extra for padding rows).

    On a mesh pools are split as their rows are, and all else is whole on every device.
    """
    if mesh is None:
        return _empty_state(target, draft, config, num_aux)
    # No device ever holds what belongs to others.
    return _sharded_state(target, draft, config, num_aux, mesh)()


def state_shapes(
    target: Target,
    draft: Eagle3Draft | None,
    config: EngineConfig,
    num_aux: int,
    mesh: Mesh | None = None,
) -> DecodeState:
    """Shapes of the same, and where they lie on the mesh."""
    if mesh is None:
        return jax.eval_shape(partial(_empty_state, target, draft, config, num_aux))
    return _sharded_state(target, draft, config, num_aux, mesh).eval_shape()


def _sharded_state(
    target: Target, draft: Eagle3Draft | None, config: EngineConfig, num_aux: int, mesh: Mesh
) -> Any:
    build = partial(_empty_state, target, draft, config, num_aux)
    return jax.jit(build, out_shardings=_shardings(target, draft, config, mesh))


def _empty_state(
    target: Target, draft: Eagle3Draft | None, config: EngineConfig, num_aux: int
) -> DecodeState:
    dtype = target.embed_tokens.embedding.get_value().dtype
    pages = (config.pool_pages, config.page_size)
    aux_size = num_aux * target.config.hidden_size

    def plain_pool(row: tuple[int, ...]) -> KVPool:
        plain = dtype if config.kv_cache_dtype == "auto" else jnp.bfloat16
        return jnp.zeros((*pages, *row), plain)

    def float8_pool(row: tuple[int, ...], scale: float) -> KVPool:
        values = jnp.zeros((*pages, *row), jnp.float8_e4m3fn)
        return QuantizedPool(values, jnp.float32(scale))

    def pools(rows: Sequence[tuple[int, ...]], scales: Sequence[float] | None) -> KVPools:
        return tuple(map(plain_pool, rows) if scales is None else map(float8_pool, rows, scales))

    draft_rows = draft.pool_rows if draft else ()
    scales = None
    if config.kv_cache_scale is not None:
        scales = pool_scales(config.kv_cache_scale, len(target.pool_rows), len(draft_rows))
    return DecodeState(
        pools(target.pool_rows, scales and scales.target),
        pools(draft_rows, scales and scales.draft),
        empty_slots(config.max_num_seqs + 1, config.width, aux_size, dtype),
        empty_controls(config.max_num_seqs + 1, target.config.vocab_size),
    )


def _shardings(target: Target, draft: Eagle3Draft | None, config: EngineConfig, mesh: Mesh) -> Any:
    """Of each part of the state, in the state's place."""
    whole = NamedSharding(mesh, PartitionSpec())
    quantized: Any = QuantizedPool

    def pool(split: tuple[MeshAxes | None, ...]) -> Any:
        rows = NamedSharding(mesh, PartitionSpec(None, None, *split))
        return quantized(rows, whole) if config.kv_cache_dtype == "fp8" else rows

    def pools(model: Target | Eagle3Draft | None) -> tuple[Any, ...]:
        return tuple(map(pool, model.pool_splits)) if model else ()

    shardings: Any = DecodeState
    return shardings(pools(target), pools(draft), whole, whole)
