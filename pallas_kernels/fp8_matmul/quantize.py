"""Activations to float8, alone or with the norm before them: a program a row, read once."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.quantized.activations import FP8_MAX, SMALLEST_FP8_SCALE
from pallas_kernels.quantized.array import BLOCK
from pallas_kernels.rms_norm import Norm
from pallas_kernels.tile_product import Operand
from pallas_kernels.triton import launch, load, store, to_fp8, whole


def quantize(
    x: Float[Array, "rows inputs"], norm: Norm | None = None, *, grouped: bool = False
) -> Operand:
    """The GPU's float8 [rows, inputs] and float32 scales, [rows] or, grouped, [rows, inputs / 128].

    norm: what x goes through first. Values times scale are what
    `quantized.activations` makes of x; a row (or group) with NaN or infinity has a NaN scale.
    """
    rows, inputs = x.shape
    runs = -(-inputs // BLOCK) if grouped else 1
    operands = (x,) if norm is None else (x, norm.weight)
    in_specs = [pl.BlockSpec((None, inputs), lambda row: (row, 0)), *map(whole, operands[1:])]
    values, scale = launch(
        functools.partial(_kernel, eps=norm and norm.eps, runs=runs),
        name="quantize_fp8" if norm is None else "norm_quantize_fp8",
        grid=(rows,),
        in_specs=in_specs,
        out_specs=[
            pl.BlockSpec((None, inputs), lambda row: (row, 0)),
            pl.BlockSpec((None, runs), lambda row: (row, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((rows, inputs), gpu.current().fp8),
            jax.ShapeDtypeStruct((rows, runs), jnp.float32),
        ],
        num_warps=4 if inputs <= 8192 else 8,
    )(*operands)
    return Operand(values, scale if grouped else scale[:, 0])


def _kernel(x: Any, *refs: Any, eps: float | None, runs: int) -> None:
    *weight, values, scale = refs
    inputs = x.shape[0]
    size = pl.next_power_of_2(BLOCK if runs > 1 else inputs)
    run = jnp.arange(pl.next_power_of_2(runs))
    index = run[:, None] * size + jnp.arange(size)[None, :]
    inside = index < inputs
    wide = load(x.at[index], mask=inside, other=0.0).astype(jnp.float32)
    if eps is not None:
        factor = jax.lax.rsqrt(jnp.sum(jnp.sum(wide * wide, axis=1)) / inputs + eps)
        own = load(weight[0].at[index], mask=inside, other=0.0)
        wide = (own * (wide * factor).astype(x.dtype)).astype(jnp.float32)
    # A GPU's maximum passes over NaN.
    magnitude = jnp.where(jnp.abs(wide) < jnp.inf, jnp.abs(wide), jnp.inf)
    largest = jnp.max(magnitude, axis=1)
    factor = jnp.maximum(largest / FP8_MAX, SMALLEST_FP8_SCALE)
    clipped = jnp.clip(wide * (1 / factor)[:, None], -FP8_MAX, FP8_MAX)
    store(values.at[index], to_fp8(clipped), mask=inside)
    # Bits of e4m3fn are worth half in e4m3fnuz.
    factor = factor if values.dtype == jnp.float8_e4m3fn else factor * 2
    store(scale.at[run], jnp.where(largest < jnp.inf, factor, jnp.nan), mask=run < runs)
