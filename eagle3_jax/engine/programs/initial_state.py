"""Initial state of the device."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_jax.cache import KVPool, QuantizedPool, SplitPool
from eagle3_jax.engine.config import EngineConfig, pool_scales
from eagle3_jax.layers.split_context import SharedContext
from eagle3_jax.mesh import DATA, DEVICES, MeshAxes, parts, replicas
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.logit_control_rows import NO_TOKEN, empty_controls
from eagle3_jax.speculative.state import DecodeState, empty_slots


class PoolLayout(NamedTuple):
    """Layout of one pool on the devices.

    `row` is the shape of a position's row, `split` its mesh axes. `slots` are those of a page over
    all devices with a part of the pool, equal parts included. `context_axes` are the axes of these
    devices, None if each has all slots; `parts` neighbours have different slots, or those of other
    KV heads. `scale` is that of float8.
    """

    row: tuple[int, ...]
    split: tuple[MeshAxes | None, ...]
    slots: int
    context_axes: MeshAxes | None
    parts: int
    scale: float | None

    def held(self, stored: Any, scale: Any) -> Any:
        """Combine stored rows and scale, or their shardings, into the pool's structure."""
        pool: Any = stored if self.scale is None else QuantizedPool(stored, scale)
        return pool if self.parts == 1 else SplitPool(pool, self.parts)


@dataclass(frozen=True, eq=False)
class StateLayout:
    """Layout of a pair's decode state; `image_rows` counts image_features with scratch.

    On a mesh, pools are split like their rows, or their pages among neighbours
    (decode_context_parallel_size; a draft's among fewer, if fewer share a page). All else is
    replicated. Replicas have a state each, with a leading axis. Raises ValueError if the mesh
    cannot be divided so.
    """

    target: Target
    draft: Eagle3Draft | None
    config: EngineConfig
    num_aux: int
    mesh: Mesh | None = None
    image_rows: int = 0

    def __post_init__(self) -> None:
        found, wanted = replicas(self.mesh), self.config.data_parallel_size
        if found != wanted:
            raise ValueError(
                f"data_parallel_size {wanted} needs a mesh of as many replicas; this has {found}"
            )
        size = self.config.decode_context_parallel_size
        devices = 1 if self.mesh is None else parts(self.mesh, DEVICES)
        if devices % size:
            raise ValueError(
                f"decode_context_parallel_size must divide the devices of the mesh, {devices}; "
                f"got {size}"
            )
        heads = min((context.heads for context in self.target.contexts if context), default=1)
        if devices // heads % size:
            raise ValueError(
                "decode_context_parallel_size must divide the devices that share a KV head, "
                f"{devices // heads}: {heads} heads on {devices} devices; got {size}"
            )

    def initial(self) -> DecodeState:
        """Make empty pools and finished slots (one extra for padding rows)."""
        # Sharded from the start, so that no device ever holds another device's part.
        return self._empty() if self.mesh is None else self._sharded(self.mesh)()

    def shapes(self) -> DecodeState:
        """Return the shapes and shardings of the initial state."""
        if self.mesh is None:
            return jax.eval_shape(self._empty)
        return self._sharded(self.mesh).eval_shape()

    def _layouts(self) -> tuple[list[PoolLayout], list[PoolLayout]]:
        """Return the layouts of the target's pools and of the draft's."""
        target, draft, config, mesh = self.target, self.draft, self.config, self.mesh
        number = config.decode_context_parallel_size
        draft_pools = len(draft.pool_rows) if draft else 0
        scales: Any = None
        if config.kv_cache_scale is not None:
            scales = pool_scales(config.kv_cache_scale, len(target.pool_rows), draft_pools)

        def layout(
            row: tuple[int, ...],
            split: tuple[MeshAxes | None, ...],
            context: SharedContext | None,
            scale: float | None,
        ) -> PoolLayout:
            if mesh is None or context is None or context.heads == number == 1:
                return PoolLayout(row, split, config.page_tokens, None, 1, scale)
            devices = parts(mesh, context.axes)
            own_parts = math.gcd(number, devices // context.heads)
            slots = config.page_tokens // own_parts * devices
            return PoolLayout(row, split, slots, context.axes, own_parts, scale)

        def of(model: Target | Eagle3Draft | None, factors: Any) -> list[PoolLayout]:
            if model is None:
                return []
            each = model.pool_rows, model.pool_splits, model.contexts
            return list(map(layout, *each, factors or (None,) * len(model.pool_rows)))

        return of(target, scales and scales.target), of(draft, scales and scales.draft)

    def _sharded(self, mesh: Mesh) -> Any:
        build, shardings = self._empty, self._shardings(mesh)
        if (number := replicas(mesh)) == 1:
            return jax.jit(build, out_shardings=shardings)
        each = jax.tree.map(
            lambda lies: NamedSharding(mesh, PartitionSpec(DATA, *lies.spec)), shardings
        )
        return jax.jit(
            lambda: jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), build()),
            out_shardings=each,
        )

    def _empty(self) -> DecodeState:
        target, config, dtype = self.target.config, self.config, self.target.dtype
        plain = dtype if config.kv_cache_dtype == "auto" else jnp.bfloat16
        aux_size, rows = self.num_aux * target.hidden_size, self.image_rows

        def pool(layout: PoolLayout) -> KVPool:
            stored = plain if layout.scale is None else jnp.float8_e4m3fn
            rows = jnp.zeros((config.pool_pages, layout.slots, *layout.row), stored)
            return layout.held(rows, None if layout.scale is None else jnp.float32(layout.scale))

        target_pools, draft_pools = self._layouts()
        return DecodeState(
            tuple(map(pool, target_pools)),
            tuple(map(pool, draft_pools)),
            empty_slots(config.max_num_seqs + 1, config.width, aux_size, dtype),
            empty_controls(config.max_num_seqs + 1, target.vocab_size),
            jnp.zeros((rows, target.hidden_size), dtype) if rows else None,
            jnp.full((config.max_num_seqs + 1, config.max_model_len), NO_TOKEN)
            if config.method.lookup
            else None,
        )

    def _shardings(self, mesh: Mesh) -> Any:
        """Return the shardings in the structure of the state."""
        whole = NamedSharding(mesh, PartitionSpec())

        def pool(layout: PoolLayout) -> Any:
            spec = PartitionSpec(None, layout.context_axes, *layout.split)
            return layout.held(NamedSharding(mesh, spec), whole)

        target_pools, draft_pools = self._layouts()
        shardings: Any = DecodeState
        pools = tuple(map(pool, target_pools)), tuple(map(pool, draft_pools))
        optional = (whole if has else None for has in (self.image_rows, self.config.method.lookup))
        return shardings(*pools, whole, whole, *optional)
