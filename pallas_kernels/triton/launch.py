"""Launch of a kernel, and loads and stores in it, with offsets into large one-byte arrays.

Pallas uses 64-bit offsets if an array has more than 2**32 bytes. But an offset is a signed number
of elements: with one-byte elements, 32 bits end at 2**31.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax._src.pallas.triton import lowering
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_kernels import gpu

load, store = plt.load, plt.store


def launch(
    kernel: Callable[..., None],
    *,
    name: str,
    grid: tuple[int, ...],
    out_shape: Any,
    in_specs: Any = None,
    out_specs: Any = None,
    num_warps: int = 4,
    num_stages: int = 1,
    input_output_aliases: Mapping[int, int] | None = None,
) -> Callable[..., Any]:
    """Return a function that launches a kernel over a grid; it runs interpreted without a GPU.

    in_specs: a BlockSpec for each argument, or a tree of them for a tree. Without specs, every
    program sees all arguments or results whole.
    """
    return lambda *arrays: pl.pallas_call(
        kernel,
        name=name,
        grid=grid,
        in_specs=jax.tree.map(whole, arrays) if in_specs is None else in_specs,
        out_specs=jax.tree.map(whole, out_shape) if out_specs is None else out_specs,
        out_shape=out_shape,
        input_output_aliases=dict(input_output_aliases or {}),
        compiler_params=plt.CompilerParams(num_warps=num_warps, num_stages=num_stages),
        interpret=gpu.interpreted(),
    )(*arrays)


def scatter(out: Any, place: Array, value: Array, mask: Array) -> None:
    """Store values at indices of a one-dimensional ref."""
    # In interpreted mode, a masked store rewrites the old value: keep it off places that are
    # written.
    apart = jnp.where(mask, place, out.shape[0])
    store(out.at[apart], value, mask=mask)


def whole(array: Array | jax.ShapeDtypeStruct) -> pl.BlockSpec:
    """Return the spec of the whole array, for kernels that choose what they load."""
    return pl.BlockSpec(array.shape, lambda *_: (0,) * len(array.shape))


_compute_offsets = lowering._compute_offsets_from_indices


def _offsets(block: lowering.BlockInfo, indexer: lowering.NDIndexer) -> Any:
    whole = block.full_shape_dtype
    if jnp.dtype(whole.dtype).itemsize == 1:
        block = replace(block, full_shape_dtype=jax.ShapeDtypeStruct(whole.shape, jnp.int16))
    return _compute_offsets(block, indexer)


def count_elements() -> None:
    """Patch Pallas to use 64-bit offsets if an array has more than 2**31 elements."""
    lowering._compute_offsets_from_indices = _offsets
