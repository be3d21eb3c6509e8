"""A few rows times a matrix that is read once, from where it lies: products of decoding on a CPU.

XLA:CPU multiplies whole arrays only, so that a product with `stack[expert]` first copies the
matrix, which costs as much again as reading it; and of a few rows it reads a matrix far slower than
memory answers. Sums of scaled rows are an elementwise loop instead, which reads a slice in place.
STREAMS of them at once keep memory busy and leave a matrix STREAMS times smaller, which an ordinary
product sums.

Microseconds (float32, jax 0.10.2, one pinned thread of a 2-vCPU Zen 3 that reads 20 GB/s, matrices
not in cache), an ordinary product : streams:

    rows                     1           2           3           4
    512 x 8192         925:776   2960:2020   3470:1950   4270:3100
    512 x 1536         168:164     477:264     613:289     596:318
    512 x 512           85:51      134:87      274:120     207:119
    192 x 192           14:9        21:11       22:13       23:15
    expert 512 x 256   166:90      171:112     200:141     226:168

(The last is gate, up and down of one expert out of a stack, whose bytes alone take 79; at 8 rows
its product is as fast as streams.)
"""

import math
from collections.abc import Callable
from functools import reduce
from operator import add

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import follows_data
from pallas_kernels.quantized import Kernel, QuantizedArray, QuantizedRows, Rows, matmul

STREAMS, MOST_ROWS = 8, 4
LEAST_SIZE = 2**16
"""Numbers of a matrix: a smaller one stays in cache, and streams take longer to compile."""

Read = Callable[[int, int], Float[Array, "length outputs"]]
"""Rows of a matrix from a first one on, as many as asked for."""


def _fit(rows: int, inputs: int, outputs: int) -> bool:
    """Whether streams are the faster product here."""
    large = inputs * outputs >= LEAST_SIZE and inputs % STREAMS == 0
    return large and 0 < rows <= MOST_ROWS and follows_data()


def rows_matmul(x: Rows, kernel: Kernel) -> Float[Array, "*rows outputs"]:
    """x @ kernel as `pallas_kernels.quantized.matmul` defines it, by streams where they are faster;
    each row by itself: a row's bits never depend on the others."""
    if isinstance(x, QuantizedRows) or isinstance(kernel, QuantizedArray):
        return matmul(x, kernel)
    if not _fit(math.prod(x.shape[:-1]), *kernel.shape):
        return matmul(x, kernel)
    matrix: Array = kernel
    rows = x.reshape(-1, x.shape[-1])
    product = _each(rows, lambda first, length: lax.slice_in_dim(matrix, first, first + length))
    return product.reshape(*x.shape[:-1], matrix.shape[1])


def expert_matmul(
    x: Float[Array, "rows inputs"], stack: Kernel, expert: Int[Array, ""]
) -> Float[Array, "rows outputs"]:
    """x @ stack[expert], without a copy of the matrix where streams are taken."""
    if isinstance(stack, QuantizedArray) or not _fit(len(x), *stack.shape[1:]):
        return matmul(x, stack[expert])

    matrices: Array = stack

    def read(first: int, length: int) -> Array:
        # A slice of its own for each: one that several loops read would be copied after all.
        return lax.dynamic_slice(matrices, (expert, first, 0), (1, length, matrices.shape[2]))[0]

    return _each(x, read)


def _each(x: Float[Array, "rows inputs"], read: Read) -> Float[Array, "rows outputs"]:
    """Stream i of a row adds up the i-th part of the matrix, scaled."""
    length = x.shape[1] // STREAMS
    ones, products = jnp.ones((1, length)), []
    for row in x.astype(jnp.float32).reshape(len(x), STREAMS, length, 1):
        parts = (row[i] * read(i * length, length) for i in range(STREAMS))
        products.append(ones @ reduce(add, parts))
    return jnp.concatenate(products).astype(x.dtype)
