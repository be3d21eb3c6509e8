"""Kernels with one program for each row, launched alone or together with another kernel."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.triton import launch, whole


class RowKernel(NamedTuple):
    """A kernel body that processes one row of an array.

    body(x, *constants, *out) takes refs of one row of x and of the same row of each array of `out`.
    The first dimension of every array is the rows.
    """

    name: str
    body: Callable[..., None]
    out: tuple[jax.ShapeDtypeStruct, ...]


def run_rows(
    kernel: RowKernel, x: Float[Array, "rows inputs"], *constants: Array
) -> tuple[Array, ...]:
    """Launch the kernel on all rows of x. Every program sees the constants whole."""
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
    """Return the BlockSpec of one row, [1] if that is one number. row(program) is its index."""
    rest = array.shape[1:]
    return pl.BlockSpec((None, *rest) if rest else (1,), lambda i: (row(i), *(0 for _ in rest)))
