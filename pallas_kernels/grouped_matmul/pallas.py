"""GPU kernels of `grouped_mlp`: gate and up in one launch, down in another, then one sum.

A program reads from the tile map which expert it runs on which pairs, so only chosen experts are
read. Programs past the tiles in use exit at once. Each pair has a result row of its own, and a
token adds up its pairs in the order of its choices: no result depends on the order of programs.

Dense products with four-bit weights run as a shared expert that every token takes.
"""

from typing import TypeGuard

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.grouped_matmul.activations import activations
from pallas_kernels.grouped_matmul.kernel import format_of, multiply
from pallas_kernels.grouped_matmul.program import ExpertBatch, RoutedAndShared
from pallas_kernels.grouped_matmul.shared import GatedKernels, Matrix, can_join, swiglu
from pallas_kernels.grouped_matmul.tile_map import TileMap, tile_map
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.grouped_matmul.unpack import MOST_INPUTS, VALUES_PER_WORD
from pallas_kernels.quantized import QuantizedArray, dtype_for_gpu
from pallas_kernels.tile_product import Operand


def launch_grouped_mlp(
    x: Float[Array, "tokens hidden"],
    stacks: GatedKernels,
    expert_ids: Int[Array, "tokens top_k"],
    expert_weights: Float[Array, "tokens top_k"],
    *,
    shared: GatedKernels | None = None,
    tiles: TileMap | None = None,
    rows: Operand | None = None,
) -> Float[Array, "tokens hidden"]:
    if shared is not None and (not can_join(shared, stacks) or refusal(x, *shared)):
        routed = launch_grouped_mlp(x, stacks, expert_ids, expert_weights, tiles=tiles, rows=rows)
        return routed + swiglu(x, shared)
    gate, up, down = stacks
    (tokens, top_k), experts = expert_ids.shape, gate.shape[0]
    batch = ExpertBatch(tokens, top_k, row_tile(tokens, top_k, experts), shared is not None)
    order = tile_map(expert_ids, experts, batch.rows) if tiles is None else tiles
    own = shared or ()
    rows = activations(x, format_of(gate)) if rows is None else rows
    in_own = format_of(own[0]) if own else format_of(gate)
    both = RoutedAndShared(rows, rows if in_own == format_of(gate) else activations(x, in_own))
    then = RoutedAndShared(format_of(down), format_of(own[2] if own else down))
    inner = multiply(batch, order, both, [gate, up], own[:2], x.dtype, then=then)
    outs = multiply(batch, order, inner, [down], own[2:], x.dtype).routed.values
    of_pairs = outs[: batch.pairs].reshape(tokens, top_k, -1)
    total = jnp.zeros(x.shape, jnp.float32)
    for choice in range(top_k):
        # Pairs of other devices' experts were never written.
        held = (expert_ids[:, choice, None] >= 0) & (expert_ids[:, choice, None] < experts)
        total += jnp.where(held, expert_weights[:, choice, None] * of_pairs[:, choice], 0)
    routed = total.astype(x.dtype)
    return routed if shared is None else routed + outs[batch.pairs :]


def refusal(x: Array, gate: Matrix, up: Matrix, down: Matrix) -> str | None:
    if x.dtype not in (jnp.bfloat16, jnp.float32):
        return f"expected x in bfloat16 or float32, got {x.dtype}"
    if format_of(gate) != format_of(up):
        return f"expected gate and up in one format, got {format_of(gate)} and {format_of(up)}"
    for stack in (gate, up, down):
        values = stack.values if isinstance(stack, QuantizedArray) else stack
        form, inputs = format_of(stack), stack.shape[-2]
        expected = x.dtype if form is None else dtype_for_gpu(form)
        if values.dtype != expected:
            return f"expected weights in {jnp.dtype(expected).name}, got {values.dtype}"
        in_channels = form is not None and form.stored.bits == 4 and form.stored.per_row
        if in_channels and (inputs % VALUES_PER_WORD or inputs > MOST_INPUTS):
            return (
                f"expected int4_channel in whole words, {MOST_INPUTS} inputs at most, got {inputs}"
            )
    return None


def is_four_bit(kernel: Array | QuantizedArray) -> TypeGuard[QuantizedArray]:
    """Return whether a kernel has four bits, so that the experts' kernels multiply it."""
    return isinstance(kernel, QuantizedArray) and kernel.format.stored.bits == 4


def dense_refusal(x: Array, *kernels: QuantizedArray) -> str | None:
    return refusal(x, kernels[0], kernels[-1], kernels[0])


def dense_matmul(
    x: Float[Array, "*rows inputs"], *kernels: QuantizedArray
) -> Float[Array, "*rows outputs"]:
    """Compute x @ kernel as `pallas_kernels.quantized.matmul` does, or, for gate and up kernels,
    silu(x @ gate) * (x @ up)."""
    flat = x.reshape(-1, x.shape[-1])
    nothing = jnp.zeros(1, jnp.int32)
    batch = ExpertBatch(len(flat), 0, row_tile(len(flat), 1, 1), shared=True)
    stacks = [kernel[None] for kernel in kernels]
    rows = activations(flat, kernels[0].format)
    both = RoutedAndShared(rows, rows)
    out = multiply(batch, TileMap(*[nothing] * 5), both, stacks, kernels, x.dtype)
    return out.shared.values.reshape(*x.shape[:-1], -1)
