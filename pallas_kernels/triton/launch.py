"""Launch of a kernel, and loads and stores in it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
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
