"""Quantisation of activations to float8, optionally after a norm: one program for each row."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.quantized.activations import FP8_MAX, SMALLEST_FP8_SCALE
from pallas_kernels.quantized.formats import BLOCK
from pallas_kernels.rms_norm import Norm
from pallas_kernels.row_kernel import RowKernel, run_rows
from pallas_kernels.tile_product import Operand
from pallas_kernels.triton import load, store, to_fp8


def quantize(
    x: Float[Array, "rows inputs"], norm: Norm | None = None, *, grouped: bool = False
) -> Operand:
    """Quantise rows to the GPU's float8.

    `norm` is applied to x first. Returns values [rows, inputs] and float32 scales, [rows] or, if
    grouped, [rows, inputs / 128]. Values times scales equal those of `quantized.activations`; a row
    (or group) with NaN or infinity has a NaN scale.
    """
    kernel = fp8_rows(*x.shape, grouped=grouped)
    if norm is None:
        return Operand(*run_rows(kernel, x))
    body = functools.partial(_kernel, eps=norm.eps)
    kernel = kernel._replace(name="norm_quantize_fp8", body=body)
    return Operand(*run_rows(kernel, x, norm.weight))


def fp8_rows(rows: int, inputs: int, *, grouped: bool, width: int | None = None) -> RowKernel:
    """Return the row kernel of `quantize`. Values are `width` wide, with zeros after the inputs."""
    scales = (rows, -(-inputs // BLOCK)) if grouped else (rows,)
    values = jax.ShapeDtypeStruct((rows, width or inputs), gpu.current().fp8)
    return RowKernel("quantize_fp8", _kernel, (values, jax.ShapeDtypeStruct(scales, jnp.float32)))


def to_fp8_runs(
    wide: Float[Array, "runs size"], largest: Float[Array, " runs"] | None = None
) -> tuple[Array, Array]:
    """Quantise runs inside a kernel, with a scale each. largest: magnitudes of longer runs."""
    if largest is None:
        # A GPU's maximum ignores NaN.
        magnitude = jnp.where(jnp.abs(wide) < jnp.inf, jnp.abs(wide), jnp.inf)
        largest = jnp.max(magnitude, axis=1)
    factor = jnp.maximum(largest / FP8_MAX, SMALLEST_FP8_SCALE)
    clipped = jnp.clip(wide * (1 / factor)[:, None], -FP8_MAX, FP8_MAX)
    # The bits of an e4m3fn number are worth half in e4m3fnuz.
    factor = factor if gpu.current().fp8 == jnp.float8_e4m3fn else factor * 2
    return to_fp8(clipped), jnp.where(largest < jnp.inf, factor, jnp.nan)


def _kernel(x: Any, *refs: Any, eps: float | None = None) -> None:
    """Kernel body: a row in float8 with one scale, or one for each 128 inputs; eps: norm it first.

    Grid: rows. Blocks: [inputs] of x, values and scale, as [runs, inputs a run] padded to powers of
    two, all of it in registers. Limit: memory bandwidth. Units: values * scale is the row, float32
    scales.
    """
    *weight, values, scale = refs
    inputs, runs = x.shape[0], scale.shape[0]
    size = pl.next_power_of_2(BLOCK if runs > 1 else values.shape[0])
    run = jnp.arange(pl.next_power_of_2(runs))
    index = run[:, None] * size + jnp.arange(size)[None, :]
    inside = index < inputs
    wide = load(x.at[index], mask=inside, other=0.0).astype(jnp.float32)
    if eps is not None:
        factor = jax.lax.rsqrt(jnp.sum(jnp.sum(wide * wide, axis=1)) / inputs + eps)
        own = load(weight[0].at[index], mask=inside, other=0.0)
        wide = (own * (wide * factor).astype(x.dtype)).astype(jnp.float32)
    found, factors = to_fp8_runs(wide)
    store(values.at[index], found, mask=index < values.shape[0])
    store(scale.at[run], factors, mask=run < runs)
