"""Products of a few rows with a matrix that is read once, in place: decoding on a CPU.

XLA:CPU multiplies whole arrays only. A product with `stack[expert]` first copies the matrix, which
costs as much as reading it, and with few rows it reads a matrix far below memory bandwidth. Sums of
scaled matrix rows are an elementwise loop instead, which reads a slice in place. STREAMS such loops
at once keep memory busy and leave a matrix STREAMS times smaller, which an ordinary product sums.

Microseconds (float32, jax 0.10.2, one pinned thread of a 2-vCPU Zen 3 that reads 20 GB/s, matrices
not in cache), ordinary product : streams:

    rows                     1           2           3           4
    512 x 8192         925:776   2960:2020   3470:1950   4270:3100
    512 x 1536         168:164     477:264     613:289     596:318
    512 x 512           85:51      134:87      274:120     207:119
    192 x 192           14:9        21:11       22:13       23:15
    expert 512 x 256   166:90      171:112     200:141     226:168

The last line is gate, up and down of one expert in a stack; reading their bytes alone takes 79. At
8 rows the ordinary product is as fast.
"""

import math
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import follows_data
from pallas_kernels.quantized import Kernel, QuantizedArray, QuantizedRows, Rows, matmul

STREAMS = 8


class Range(NamedTuple):
    """Products for which streams are faster: at most `rows` rows, at least `size` elements."""

    rows: int
    size: int

    def fits(self, rows: int, inputs: int, outputs: int) -> bool:
        """Return whether to multiply so many rows by [inputs, outputs] as streams."""
        large = inputs * outputs >= self.size and inputs % STREAMS == 0
        return large and 0 < rows <= self.rows and follows_data()


DENSE = Range(rows=1, size=2**16)
EXPERT = Range(rows=4, size=2**15)
"""Ranges of a matrix and of a matrix in a stack. Smaller matrices stay in cache."""

Read = Callable[[int, int], Float[Array, "length outputs"]]
"""Takes the first row and a number of rows of a matrix; returns these rows."""


def rows_matmul(x: Rows, kernel: Kernel) -> Float[Array, "*rows outputs"]:
    """Compute `pallas_kernels.quantized.matmul`, by streams if faster; rows are independent."""
    if isinstance(x, QuantizedRows) or isinstance(kernel, QuantizedArray):
        return matmul(x, kernel)
    if not DENSE.fits(math.prod(x.shape[:-1]), *kernel.shape):
        return matmul(x, kernel)
    product = stream_matrix(x.reshape(-1, x.shape[-1]), kernel)
    return product.reshape(*x.shape[:-1], kernel.shape[1])


def expert_matmul(
    x: Float[Array, "rows inputs"], stack: Kernel, expert: Int[Array, ""]
) -> Float[Array, "rows outputs"]:
    """Compute x @ stack[expert]; the streamed product makes no copy of the matrix."""
    if isinstance(stack, QuantizedArray) or not EXPERT.fits(len(x), *stack.shape[1:]):
        return matmul(x, stack[expert])
    return stream_expert(x, stack, expert)


def stream_matrix(
    x: Float[Array, "rows inputs"], matrix: Float[Array, "inputs outputs"]
) -> Float[Array, "rows outputs"]:
    """Compute x @ matrix as streams."""
    return _each(x, lambda first, length: lax.slice_in_dim(matrix, first, first + length))


def stream_expert(
    x: Float[Array, "rows inputs"],
    stack: Float[Array, "experts inputs outputs"],
    expert: Int[Array, ""],
) -> Float[Array, "rows outputs"]:
    """Compute x @ stack[expert] as streams."""

    def read(first: int, length: int) -> Array:
        # Each stream takes its own slice: XLA would copy a slice that several loops read.
        return lax.dynamic_slice(stack, (expert, first, 0), (1, length, stack.shape[2]))[0]

    return _each(x, read)


def _each(x: Float[Array, "rows inputs"], read: Read) -> Float[Array, "rows outputs"]:
    """Multiply rows by a matrix: stream i sums the scaled rows of the i-th part of the matrix."""
    length = x.shape[1] // STREAMS
    ones, products = jnp.ones((1, length)), []
    for row in x.astype(jnp.float32).reshape(len(x), STREAMS, length, 1):
        parts = (row[i] * read(i * length, length) for i in range(STREAMS))
        products.append(ones @ reduce(add, parts))
    return jnp.concatenate(products).astype(x.dtype)
