"""Products of one x with several kernels in one launch; the parameters stay separate.

Weights lie side by side in the grid of `joint_matmul`. Four-bit weights run on the experts' kernels
(`grouped_matmul`), one launch for each weight of `joint_matmul`.
"""

from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.fp8_matmul import matmul
from pallas_kernels.fp8_matmul.operands import as_rows, as_weight, refusal
from pallas_kernels.fp8_matmul.tiles import choose_tiles
from pallas_kernels.grouped_matmul.pallas import dense_matmul, dense_refusal, is_four_bit
from pallas_kernels.partial_sums import Product, as_product
from pallas_kernels.quantized import OneKernel, QuantizedArray
from pallas_kernels.rms_norm import Norm, rms_norm
from pallas_kernels.tile_product import Operand, ProductTiles, launch_tiles, products, store_tile


def joint_matmul(
    x: Float[Array, "*rows inputs"],
    *kernels: OneKernel,
    norm: Norm | None = None,
    in_parts: bool = False,
    implementation: str | None = None,
) -> tuple[Product, ...]:
    """Compute `pallas_kernels.matmul` of x with each kernel, after the norm if there is one.

    in_parts: True if the consumers add up `PartialSums`, so that a kernel may return them. Raises
    ValueError if a kernel does not fit x, and on an implementation that cannot run.
    """
    _check("joint_matmul", x, *kernels)
    return JOINT_MATMUL(implementation, x, *kernels, norm=norm, in_parts=in_parts)


def gated_matmul(
    x: Float[Array, "*rows inputs"],
    gate: OneKernel,
    up: OneKernel,
    *,
    norm: Norm | None = None,
    implementation: str | None = None,
) -> Float[Array, "*rows outputs"]:
    """Compute silu(x @ gate) * (x @ up) for kernels of one shape; `norm` is applied to x first.

    Raises ValueError on shapes that do not fit, and on an implementation that cannot run.
    """
    if gate.shape != up.shape:
        raise ValueError(f"gated_matmul: expected kernels of one shape: {gate.shape}, {up.shape}")
    _check("gated_matmul", x, gate, up)
    return GATED_MATMUL(implementation, x, gate, up, norm=norm)


def _check(operation: str, x: Array, *kernels: OneKernel) -> None:
    if any(kernel.shape[0] != x.shape[-1] for kernel in kernels):
        shapes = [tuple(kernel.shape) for kernel in kernels]
        raise ValueError(
            f"{operation}: expected x [.., in], kernels [in, out]; got {x.shape}, {shapes}"
        )


def _joint_reference(
    x: Array, *kernels: OneKernel, norm: Norm | None = None, in_parts: bool = False
) -> tuple[Product, ...]:
    x = _normed(x, norm)
    return tuple(matmul(x, kernel) for kernel in kernels)


def _gated_reference(
    x: Array, gate: OneKernel, up: OneKernel, *, norm: Norm | None = None
) -> Array:
    x = _normed(x, norm)
    return jax.nn.silu(matmul(x, gate)) * matmul(x, up)


def _normed(x: Array, norm: Norm | None) -> Array:
    return x if norm is None else rms_norm(x, norm)


def _all_four_bit(kernels: tuple[OneKernel, ...]) -> TypeGuard[tuple[QuantizedArray, ...]]:
    return all(map(is_four_bit, kernels))


def _refuse(x: Array, *kernels: OneKernel, **_: Any) -> str | None:
    if _all_four_bit(kernels):
        return next(filter(None, (dense_refusal(x, one) for one in kernels)), None)
    if len({k.format if isinstance(k, QuantizedArray) else None for k in kernels}) > 1:
        return "expected kernels of one format, got several"
    return next(filter(None, (refusal(x, kernel) for kernel in kernels)), None)


def _launch_joint(
    x: Array, *kernels: OneKernel, norm: Norm | None = None, in_parts: bool = False
) -> tuple[Product, ...]:
    if _all_four_bit(kernels):
        return tuple(dense_matmul(_normed(x, norm), kernel) for kernel in kernels)
    operand, weights = as_rows(x, kernels[0], norm), [as_weight(kernel) for kernel in kernels]
    # The grid covers all weights side by side.
    outputs = [w.outputs for w in weights]
    tiles = choose_tiles("joint_matmul", operand, weights[0], sum(outputs), in_parts=in_parts)
    sums = launch_tiles(_each, "joint_matmul", tiles, operand, weights, outputs, x.dtype)
    return tuple(as_product(one, x.shape[:-1], x.dtype) for one in sums)


def _launch_gated(x: Array, gate: OneKernel, up: OneKernel, *, norm: Norm | None = None) -> Array:
    if _all_four_bit(kernels := (gate, up)):
        return dense_matmul(_normed(x, norm), *kernels)
    operands = as_rows(x, gate, norm), as_weight(gate), as_weight(up)
    tiles = choose_tiles("gated_matmul", *operands[:2], weights=2)
    rows, *weights = operands
    outputs = [weights[0].outputs]
    (out,) = launch_tiles(_gated, "gated_matmul", tiles, rows, weights, outputs, x.dtype)
    return out.reshape(*x.shape[:-1], -1)


def _each(x: Operand, *refs: Any, tiles: ProductTiles) -> None:
    """Kernel body: a tile of one part of one weight's product; the first weight's tiles come first.

    Grid: tiles of rows x tiles of columns of all weights x parts of the inputs. Blocks: all arrays
    whole; a program multiplies [rows, step] with [columns, step] and sums float32 [rows, columns].
    Limit: reading the weights, each once up to 64 rows: one step's bytes of all programs are in
    flight. Units: scales are applied to the sums or, for blocks, to a step's sum.
    """
    rows = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)
    tile, part = pl.program_id(1), pl.program_id(2)
    count = len(refs) // 2
    for w, out in zip(refs[:count], refs[count:], strict=True):
        own = pl.cdiv(w.outputs, tiles.columns)

        @pl.when((tile >= 0) & (tile < own))
        def _(w: Operand = w, out: Any = out, tile: Array = tile) -> None:
            columns = tile * tiles.columns + jnp.arange(tiles.columns)
            (total,) = products(x, [w], rows, columns, tiles, part)
            store_tile(out, part, rows, columns, total)

        tile = tile - own


def _gated(x: Operand, gate: Operand, up: Operand, out: Any, *, tiles: ProductTiles) -> None:
    """Kernel body: a tile of silu(x gate) * (x up).

    Grid: tiles of rows x tiles of columns. Blocks: all arrays whole; two float32 sums [rows,
    columns], x read once. Limit: reading the weights, each once up to 64 rows; registers, two sums.
    Units: both products are rounded to the output's dtype before they are gated.
    """
    rows, columns = tiles.of_program()
    totals = products(x, [gate, up], rows, columns, tiles)
    # Round where two separate products and their gating would round.
    gated, wide = (total.astype(out.dtype).astype(jnp.float32) for total in totals)
    gated = (gated * jax.lax.logistic(gated)).astype(out.dtype).astype(jnp.float32)
    store_tile(out, pl.program_id(2), rows, columns, gated * wide)


JOINT_MATMUL = Operation(
    "joint_matmul", reference=_joint_reference, pallas=_launch_joint, refuse=_refuse
)
GATED_MATMUL = Operation(
    "gated_matmul", reference=_gated_reference, pallas=_launch_gated, refuse=_refuse
)
