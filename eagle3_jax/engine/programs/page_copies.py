"""Copies of whole pages between the KV pools and byte arrays.

A page in transfer is one byte array, sharded over the devices: the rows of all pools, target then
draft. If several devices hold the same rows, each carries its part of them, so that nothing is
transferred or stored twice. On the way back they gather the parts.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Int, UInt8

from eagle3_jax.cache import KVPool, KVPools, SplitPool, rows_and_scale, with_rows
from eagle3_jax.engine.page_tiers import COPIED_PAGES
from eagle3_jax.mesh import DEVICES
from eagle3_jax.speculative.state import DecodeState
from pallas_kernels import gpu


class Holders(NamedTuple):
    """`number` devices that hold the same rows of a pool, every `stride`-th."""

    number: int
    stride: int


class CopyPrograms(NamedTuple):
    """save(pools, ids) -> COPIED_PAGES pages; load(pools, ids, pages) -> the pools, donated.

    `page_bytes` counts a page on all devices. `sharding` is that of a page.
    """

    save: Any
    load: Any
    page_bytes: int
    sharding: jax.sharding.Sharding


def compile_copies(state: DecodeState) -> CopyPrograms:
    """Compile the copy programs for a state of these shapes (`shapes_of`)."""
    pools, placed = state.target_pools + state.draft_pools, state.slots.seq_lens.sharding
    mesh = placed.mesh if isinstance(placed, NamedSharding) else None
    assert not isinstance(mesh, AbstractMesh), "shapes of a state lie on devices"
    holders = [_holders(pool, mesh) for pool in pools]

    def save(pools: KVPools, ids: Int[Array, " pages"]) -> tuple[UInt8[Array, " bytes"], ...]:
        rows = [_carried(pool, ids, of) for pool, of in zip(pools, holders, strict=True)]
        return tuple(jnp.concatenate(rows, axis=1))

    def load(
        pools: KVPools, ids: Int[Array, " pages"], pages: tuple[UInt8[Array, " bytes"], ...]
    ) -> tuple[KVPool, ...]:
        carried, start, loaded = jnp.stack(pages), 0, []
        for pool, of in zip(pools, holders, strict=True):
            size = _carried_bytes(pool, of)
            loaded.append(_with_carried(pool, ids, carried[:, start : start + size], of))
            start += size
        return tuple(loaded)

    inputs: Any = (pools, jax.ShapeDtypeStruct((COPIED_PAGES,), jnp.int32))
    if mesh is not None:
        specs, whole = jax.tree.map(lambda s: s.sharding.spec, pools), PartitionSpec()
        around: Any = {"mesh": mesh, "check_vma": False}
        split = PartitionSpec(DEVICES)
        save = jax.shard_map(save, in_specs=(specs, whole), out_specs=split, **around)
        load = jax.shard_map(load, in_specs=(specs, whole, split), out_specs=specs, **around)
        ids = jax.ShapeDtypeStruct((COPIED_PAGES,), jnp.int32, sharding=NamedSharding(mesh, whole))
        inputs = (pools, ids)
    pages, lies = jax.eval_shape(save, *inputs), SingleDeviceSharding(jax.devices()[0])
    if mesh is not None:
        lies = NamedSharding(mesh, PartitionSpec(DEVICES))
        pages = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=lies), pages)
    options = gpu.compiler_options()
    saver = jax.jit(save).lower(*inputs).compile(compiler_options=options)
    loader = jax.jit(load, donate_argnums=(0,)).lower(*inputs, pages)
    return CopyPrograms(saver, loader.compile(compiler_options=options), pages[0].size, lies)


def _holders(pool: KVPool, mesh: Mesh | None) -> Holders:
    """Return the devices with the same rows of a pool.

    Of a shared KV head's keys and values each device carries all it has.
    """
    stored, _ = rows_and_scale(pool)
    if mesh is None:
        return Holders(1, 1)
    lies: Any = stored.sharding
    if all(axes is None for axes in lies.spec):
        return Holders(mesh.size, 1)
    latent = stored.ndim == len(("page", "position", "latent"))
    if isinstance(pool, SplitPool) and latent:
        return Holders(mesh.size // pool.parts, pool.parts)
    return Holders(1, 1)


def _page_bytes(pool: KVPool) -> int:
    """Return the bytes of a page of the pool on one device."""
    stored, _ = rows_and_scale(pool)
    return math.prod(stored.shape[1:]) * stored.dtype.itemsize


def _carried_bytes(pool: KVPool, holders: Holders) -> int:
    return -(-_page_bytes(pool) // holders.number)


def _carried(
    pool: KVPool, ids: Int[Array, " pages"], holders: Holders
) -> UInt8[Array, "pages bytes"]:
    """Return this device's part of these pages as bytes."""
    stored, _ = rows_and_scale(pool)
    rows = stored.at[ids].get(mode="promise_in_bounds")
    flat = lax.bitcast_convert_type(rows, jnp.uint8).reshape(len(ids), -1)
    if holders.number == 1:
        return flat
    size = _carried_bytes(pool, holders)
    flat = jnp.pad(flat, ((0, 0), (0, size * holders.number - flat.shape[1])))
    own = lax.axis_index(DEVICES) // holders.stride
    return lax.dynamic_slice_in_dim(flat, own * size, size, axis=1)


def _with_carried(
    pool: KVPool, ids: Int[Array, " pages"], own: UInt8[Array, "pages bytes"], holders: Holders
) -> KVPool:
    """Write pages to the pool, after gathering the parts of all devices."""
    stored, _ = rows_and_scale(pool)
    if holders.number > 1:
        stride = holders.stride
        apart = [list(range(first, holders.number * stride, stride)) for first in range(stride)]
        groups = None if stride == 1 else apart
        own = lax.all_gather(own, DEVICES, axis=1, tiled=True, axis_index_groups=groups)
    bytes_of_row = (*stored.shape[1:], stored.dtype.itemsize)
    flat = own[:, : _page_bytes(pool)].reshape(len(ids), *bytes_of_row)
    if stored.dtype.itemsize == 1:
        flat = flat[..., 0]
    rows = lax.bitcast_convert_type(flat, stored.dtype)
    return with_rows(pool, stored.at[ids].set(rows, mode="promise_in_bounds"))
