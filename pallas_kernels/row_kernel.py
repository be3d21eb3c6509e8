"""Kernels with a program a row, alone in a launch or with another kernel's programs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.triton import launch, whole


class RowKernel(NamedTuple):
    """body(x, *constants, *out): refs of one row of x and of the same row of each array of `out`.

    The first dimension of every array is the rows.
    """

    name: str
    body: Callable[..., None]
    out: tuple[jax.ShapeDtypeStruct, ...]


def run_rows(
    kernel: RowKernel, x: Float[Array, "rows inputs"], *constants: Array
) -> tuple[Array, ...]:
    """One launch; every program sees the constants."""
    return launch(
        kernel.body,
        name=kernel.name,
        grid=(len(x),),
        in_specs=[row_block(x), *map(whole, constants)],
        out_specs=jax.tree.map(row_block, kernel.out),
        out_shape=kernel.out,
        num_warps=4 if x.shape[1] <= 2048 else 8,
    )(x, *constants)


def row_block(
    array: Array | jax.ShapeDtypeStruct, row: Callable[[Any], Any] = lambda program: program
) -> pl.BlockSpec:
    """A program's row, [1] where a row is one number; row(program) says which it is."""
    rest = array.shape[1:]
    return pl.BlockSpec((None, *rest) if rest else (1,), lambda i: (row(i), *(0 for _ in rest)))
