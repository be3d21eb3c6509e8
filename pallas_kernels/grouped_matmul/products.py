"""Products of a tile's rows with columns of one expert's matrices, for every weight format.

Weights stay in their stored form until they are in registers. Scales of whole rows and columns are
applied to the final sum, those of blocks to each step's sum.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.grouped_matmul.activations import in_passing, largest_of_rows
from pallas_kernels.grouped_matmul.unpack import UNPACK_GROUPS, VALUES_PER_WORD, int4_times_16
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.formats import BLOCK, GROUP
from pallas_kernels.tile_product import Operand, clamp
from pallas_kernels.triton import dot, dot_mxfp4, load


class Part(NamedTuple):
    """Columns of one expert in a stack of [inputs, outputs] matrices."""

    expert: Array
    columns: Array
    inputs: int
    outputs: int
    format: QuantFormat | None


def products(
    x: Operand, rows: Array, stacks: Sequence[Operand], part: Part, depth: int
) -> list[Array]:
    """Return float32 [rows, columns] for each stack, in steps of `depth` inputs.

    Steps of plain weights have at most 128 inputs. x: values [rows, in] with scales [rows], [rows,
    in / 128] or, for packed MXFP4, [rows, in / 32]. Stacks are as in `pallas_kernels.quantized`,
    plain ones [experts, in, out]. x is read once; rows that need a scale and have none are read
    twice and quantised here. Row indices must exist; columns past the last one repeat it.
    """
    # More columns of plain weights would fill the registers.
    depth = depth if part.format is not None else min(depth, BLOCK)
    steps = -(-part.inputs // depth)
    read = partial(_rows_of, x.values, rows, depth=depth)
    quantise, scale = in_passing(part.format) if x.scale is None else None, None
    if quantise is not None:
        quantise = partial(quantise, largest=largest_of_rows(read, steps, rows.size))
        _, scale = quantise(jnp.zeros((rows.size, 1)))
    elif x.scale is not None and len(x.scale.shape) == 1:
        scale = load(x.scale.at[rows])

    def add(index: Array, totals: list[Array]) -> list[Array]:
        block = read(index)
        if quantise is not None:
            block, _ = quantise(block.astype(jnp.float32))
        return [
            _add(total, block, x, rows, stack, part, index)
            for total, stack in zip(totals, stacks, strict=True)
        ]

    whole = part.format is not None and part.format.activations == "int8_token"
    sums = jnp.int32 if whole else jnp.float32
    zeros = [jnp.zeros((rows.size, part.columns.size), sums) for _ in stacks]
    totals = jax.lax.fori_loop(0, steps, add, zeros)
    return [_scaled(total, scale, w, part) for total, w in zip(totals, stacks, strict=True)]


def _add(
    total: Array, block: Array, x: Operand, rows: Array, stack: Operand, part: Part, index: Array
) -> Array:
    """Add the product of one step to the sum."""
    if part.format is None:
        return total + dot(block, _plain(stack.values, part, index, block.shape[1]))
    packed = block.dtype == jnp.uint8
    depth = block.shape[1] * (2 if packed else 1)
    in_words = stack.values.dtype == jnp.uint32
    stored = depth // (VALUES_PER_WORD if in_words else part.format.stored.values_per_byte)
    values = _stored(stack.values, part, index, stored)
    if packed:
        scale = _stored(stack.scale, part, index, depth // GROUP)
        group = clamp(_places(index, depth // GROUP), x.scale.shape[1])
        own = load(x.scale.at[rows[:, None], group[None, :]])
        return dot_mxfp4(block, own, values, scale, total)
    if part.format.stored.in_blocks:
        added = dot(block, values.astype(block.dtype), trans_b=True)
        # `//` rounds down with a select, through which the compiler does not see multiples.
        column = jax.lax.div(clamp(part.columns, part.outputs), BLOCK)
        run = jax.lax.div(index * depth, BLOCK)
        added *= load(stack.scale.at[part.expert, column, jnp.full(column.shape, run)])[None, :]
        if x.scale is not None:
            added *= load(x.scale.at[rows, jnp.full(rows.shape, run)])[:, None]
        return total + added
    weights = _widened(values, stack, part, index, depth, block.dtype)
    return total + dot(block, weights, trans_b=True)


def _widened(
    values: Array, stack: Operand, part: Part, index: Array, depth: int, dtype: Any
) -> Array:
    """Convert weights to [columns, depth] in `dtype`, applying the scales of input groups."""
    assert part.format is not None
    stored = part.format.stored
    if stored.bits == 8:
        return values.astype(dtype)
    if stored.group is None:
        return int4_times_16(values).astype(dtype)
    scale = _stored(stack.scale, part, index, depth // stored.group)
    return UNPACK_GROUPS[stored.name](values, scale).astype(dtype)


def _scaled(total: Array, scale: Array | None, stack: Operand, part: Part) -> Array:
    """Multiply by the scales of whole rows and columns."""
    total = total.astype(jnp.float32)
    if scale is not None:
        total *= scale[:, None]
    if part.format is not None and part.format.stored.per_row:
        if part.format.stored.bits == 4:
            total /= 16
        columns = clamp(part.columns, part.outputs)
        total *= load(stack.scale.at[part.expert, columns])[None, :]
    return total


def _rows_of(values: Any, rows: Array, index: Array, depth: int) -> Array:
    """Load one step's inputs of each row, zeros past the last one."""
    width = depth // (2 if values.dtype == jnp.uint8 else 1)
    place = _places(index, width)
    if values.shape[1] % width == 0:
        return load(values.at[rows[:, None], place[None, :]])
    mask = jnp.broadcast_to(place < values.shape[1], (rows.size, width))
    return load(values.at[rows[:, None], place[None, :]], mask=mask, other=0)


def _plain(values: Any, part: Part, index: Array, depth: int) -> Array:
    """Load [depth, columns] of a plain stack."""
    k = clamp(_places(index, depth), part.inputs)
    columns = clamp(part.columns, part.outputs)
    return load(values.at[part.expert, k[:, None], columns[None, :]])


def _stored(ref: Any, part: Part, index: Array, width: int) -> Array:
    """Load [columns, width] of an array that stores a step's inputs as `width` numbers a row."""
    columns = clamp(part.columns, part.outputs)
    place = clamp(_places(index, width), ref.shape[2])
    return load(ref.at[part.expert, columns[:, None], place[None, :]])


def _places(index: Array, width: int) -> Array:
    """Return the indices of a step of `width` numbers. A division would hide their alignment."""
    return index * width + jnp.arange(width)
