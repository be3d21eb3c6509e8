"""Products of a few rows with a matrix that is read once, in place: decoding on a CPU.

XLA:CPU multiplies whole arrays only. A product with `stack[expert]` first copies the matrix, which
costs as much as reading it, and with few rows it reads a matrix far below memory bandwidth. Sums of
scaled matrix rows are an elementwise loop instead, which reads a slice in place. STREAMS such loops
at once keep memory busy and leave a matrix STREAMS times smaller, which an ordinary product sums.

A bfloat16 kernel is widened to float32 as it is read, which halves the bytes of a step. Its streams
have the bits of its float32 copy. The ordinary product widens blocks of columns and may sum in
another order.

Microseconds of CPU (jax 0.10.2, one thread of a busy 2-vCPU Zen 3, the least of several runs) of
ordinary product : streams, from `python -P -m eagle3_tools.bench.cpu.products`:

    rows                      1           2           3           4           8
    512 x 8192          906:914   2617:2011   3636:2466   3413:2918   4572:5276
    512 x 1536          137:117     297:213     573:395     652:493     750:726
    512 x 512            41:39      141:81      210:146     128:119     303:295
    expert 512 x 256     32:16       46:34       42:35       60:51       56:74
    512 x 8192, bf16   1096:399    1273:785    1401:995    1758:1581   1963:2849
    512 x 1536, bf16    118:61      146:118     172:161     250:236     342:493
    512 x 512, bf16      50:27       61:43       79:71       77:85      138:186
    expert, bf16         22:12       27:21       32:29       36:38       62:77

Every row of a streamed product is a loop of its own, which XLA compiles apart: with streams for
four bfloat16 rows of any size the demo's round compiles in 29 CPU-seconds in place of 12.
"""

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


class LeastSizes(NamedTuple):
    """Elements from which on a matrix is multiplied as streams: by 1, 2, ... rows.

    Smaller matrices stay in cache. More rows are ordinary products.
    """

    matrix: tuple[int, ...]
    expert: tuple[int, ...]


FLOAT32 = LeastSizes(matrix=(2**16, 2**16, 2**21, 2**21), expert=(2**15,) * 4)
BFLOAT16 = LeastSizes(matrix=(2**14, 2**14, 2**14, 2**21), expert=(2**14,) * 3)
BLOCK, COLUMNS = 2**16, 16
"""Most elements of a block of columns that is widened at once, and the multiple of its width."""


def rows_matmul(x: Rows, kernel: Kernel) -> Float[Array, "*rows outputs"]:
    """Compute `pallas_kernels.quantized.matmul`, by streams if faster; rows are independent."""
    if isinstance(x, QuantizedRows) or isinstance(kernel, QuantizedArray) or not follows_data():
        return matmul(x, kernel)
    rows = x.reshape(-1, x.shape[-1])
    streams = _streams(_least_sizes(kernel).matrix, len(rows), *kernel.shape)
    product = (stream_matrix if streams else multiply_matrix)(rows, kernel)
    return product.reshape(*x.shape[:-1], kernel.shape[1])


def expert_matmul(
    x: Float[Array, "rows inputs"], stack: Kernel, expert: Int[Array, ""]
) -> Float[Array, "rows outputs"]:
    """Compute x @ stack[expert]; the streamed product makes no copy of the matrix."""
    if isinstance(stack, QuantizedArray) or not follows_data():
        return matmul(x, stack[expert])
    streams = _streams(_least_sizes(stack).expert, len(x), *stack.shape[1:])
    return (stream_expert if streams else multiply_expert)(x, stack, expert)


def look_up(
    table: Float[Array, "ids hidden"], ids: Int[Array, "*rows"]
) -> Float[Array, "*rows hidden"]:
    """Return rows of a table, without a float32 copy of a bfloat16 table on a CPU."""
    if table.dtype != jnp.bfloat16 or not follows_data():
        return table[ids]
    return lax.bitcast_convert_type(_bits(table)[ids], table.dtype)


def _least_sizes(kernel: Array) -> LeastSizes:
    return BFLOAT16 if kernel.dtype == jnp.bfloat16 else FLOAT32


def _streams(least: tuple[int, ...], rows: int, inputs: int, outputs: int) -> bool:
    """Return whether streams are the faster product of rows with [inputs, outputs]."""
    if not 0 < rows <= len(least) or inputs % STREAMS:
        return False
    return inputs * outputs >= least[rows - 1]


def multiply_matrix(
    x: Float[Array, "rows inputs"], kernel: Float[Array, "inputs outputs"]
) -> Float[Array, "rows outputs"]:
    """Compute x @ kernel; a bfloat16 kernel is widened in blocks of columns if x is float32."""
    if not _widens(x, kernel):
        return x @ kernel

    def read(first: Array | int, columns: int) -> Array:
        bits, start = _bits_in_loop(kernel, first)
        return lax.dynamic_slice_in_dim(bits, start, columns, axis=1)

    return _in_blocks(x, kernel.shape[1], read)


def multiply_expert(
    x: Float[Array, "rows inputs"],
    stack: Float[Array, "experts inputs outputs"],
    expert: Int[Array, ""],
) -> Float[Array, "rows outputs"]:
    """Compute x @ stack[expert] likewise."""
    if not _widens(x, stack):
        return x @ stack[expert]

    def read(first: Array | int, columns: int) -> Array:
        bits, index, start = _bits_in_loop(stack, expert, first)
        return lax.dynamic_slice(bits, (index, 0, start), (1, x.shape[1], columns))[0]

    return _in_blocks(x, stack.shape[2], read)


def stream_matrix(
    x: Float[Array, "rows inputs"], matrix: Float[Array, "inputs outputs"]
) -> Float[Array, "rows outputs"]:
    """Compute x @ matrix as streams; needs inputs that STREAMS divides."""
    bits = _bits(matrix)
    return _each(x, lambda first, length: lax.slice_in_dim(bits, first, first + length))


def stream_expert(
    x: Float[Array, "rows inputs"],
    stack: Float[Array, "experts inputs outputs"],
    expert: Int[Array, ""],
) -> Float[Array, "rows outputs"]:
    """Compute x @ stack[expert] as streams; needs inputs that STREAMS divides."""
    bits, index = _bits_in_loop(stack, expert)

    def read(first: int, length: int) -> Array:
        # Each stream takes its own slice: XLA would copy a slice that several loops read.
        return lax.dynamic_slice(bits, (index, first, 0), (1, length, bits.shape[2]))[0]

    return _each(x, read)


def _each(
    x: Float[Array, "rows inputs"], read: Callable[[int, int], Array]
) -> Float[Array, "rows outputs"]:
    """Multiply rows by a matrix: stream i sums the scaled rows of the i-th part of the matrix.

    `read` takes the first row of a part and its length; it returns the rows or their bits.
    """
    length = x.shape[1] // STREAMS
    ones, products = jnp.ones((1, length)), []
    for row in x.astype(jnp.float32).reshape(len(x), STREAMS, length, 1):
        parts = (row[i] * _float32(read(i * length, length)) for i in range(STREAMS))
        products.append(ones @ reduce(add, parts))
    return jnp.concatenate(products).astype(x.dtype)


def _in_blocks(
    x: Float[Array, "rows inputs"], outputs: int, read: Callable[[Array | int, int], Array]
) -> Float[Array, "rows outputs"]:
    """Multiply rows by a bfloat16 matrix whose columns are widened in blocks that stay in cache.

    `read` takes the first column of a block and its width; it returns bits. There are two blocks at
    least: without a loop, XLA would widen the matrices of all layers at the beginning of a step.
    """
    most = min(BLOCK // x.shape[1], outputs // 2)
    columns = max(1, most // COLUMNS) * COLUMNS

    def add_block(index: Array, out: Array) -> Array:
        first = index * columns
        product = x @ _float32(read(first, columns))
        return lax.dynamic_update_slice(out, product, (0, first))

    count, rest = divmod(outputs, columns)
    out = lax.fori_loop(0, count, add_block, jnp.zeros((len(x), outputs)))
    return out if rest == 0 else out.at[:, -rest:].set(x @ _float32(read(outputs - rest, rest)))


def _widens(x: Array, kernel: Array) -> bool:
    """Return whether a bfloat16 kernel is multiplied in float32."""
    return (x.dtype, kernel.dtype) == (jnp.float32, jnp.bfloat16)


def _bits(kernel: Array) -> Array:
    """Return the bits of bfloat16 numbers, others unchanged.

    XLA:CPU converts a whole bfloat16 array to float32 before it slices it, but slices integers.
    """
    return lax.bitcast_convert_type(kernel, jnp.uint16) if kernel.dtype == jnp.bfloat16 else kernel


def _bits_in_loop(kernel: Array, *indices: Array | int) -> tuple[Array, ...]:
    """Return the bits of a kernel that a loop slices at these indices, and the indices.

    The barrier ties the bits to the loop's step. XLA would make them before the loop, as a copy.
    """
    if kernel.dtype != jnp.bfloat16:
        return kernel, *map(jnp.asarray, indices)
    kernel, *tied = lax.optimization_barrier((kernel, *indices))
    return _bits(kernel), *tied


def _float32(bits: Array) -> Array:
    """Return float32 numbers, of bfloat16 bits exactly."""
    if bits.dtype != jnp.uint16:
        return bits
    return lax.bitcast_convert_type(bits.astype(jnp.uint32) << 16, jnp.float32)
