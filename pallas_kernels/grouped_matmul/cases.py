"""The routed experts of decode, verify and prefill steps at the published shapes."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels import gpu
from pallas_kernels.case import Case
from pallas_kernels.grouped_matmul import pallas, reference
from pallas_kernels.quantized import QuantFormat, QuantizedArray
from pallas_kernels.quantized.array import GROUP
from pallas_kernels.quantized.dequantize import E8M0_BIAS
from pallas_kernels.shapes import DECODE_ROWS, EXPERTS, ExpertStack

KIMI = [
    None,
    QuantFormat("fp8_channel", "fp8_token"),
    QuantFormat("int4_group"),
    QuantFormat("int4_channel", "int8_token"),
    QuantFormat("mxfp4", "mxfp4"),
]
MINIMAX = [None, QuantFormat("fp8_block", "fp8_group")]
LARGEST = 20 * 2**30
"""Bytes of a layer's experts that a benchmark's GPU has room for, with those of the reference."""


def cases() -> list[Case]:
    """Each model's formats, as far as the experts of a layer fit into a GPU."""
    return [
        _case(stack, format, tokens)
        for stack in EXPERTS
        for format in (KIMI if stack.name.startswith("kimi") else MINIMAX)
        if stack.experts * 3 * stack.hidden * stack.inter * _bytes(format) < LARGEST
        for tokens in DECODE_ROWS
    ]


def _case(stack: ExpertStack, format: QuantFormat | None, tokens: int) -> Case:
    weights = 3 * stack.hidden * stack.inter
    hit = stack.experts * (1 - (1 - stack.top_k / stack.experts) ** tokens)
    return Case(
        operation="grouped_mlp",
        shape=stack.name,
        variant=f"{_name(format)} tokens{tokens}",
        run=pallas.grouped_mlp,
        reference=reference.grouped_mlp,
        example=partial(_example, stack, format, tokens),
        kernels=("expert_gate_up", "expert_down"),
        matrix=_matrix(format),
        bytes_moved=round(hit * weights * _bytes(format)) + tokens * stack.hidden * 4,
        flops=2 * tokens * stack.top_k * weights,
        decode=tokens <= 64,
    )


def _name(format: QuantFormat | None) -> str:
    if format is None:
        return "bf16"
    return format.weights + ("" if format.activations == "none" else f"_{format.activations}")


def _bytes(format: QuantFormat | None) -> float:
    """Of a weight, with the scales of groups; those of rows and blocks are lost in the rounding."""
    if format is None:
        return 2.0
    per_group = {"int4_group": 2 / GROUP, "mxfp4": 1 / GROUP}
    return 1 / format.values_per_byte + per_group.get(format.weights, 0)


def _matrix(format: QuantFormat | None) -> dict[str, str]:
    """What multiplies: gfx942 has no MXFP4 and multiplies what it dequantised."""
    activations = "none" if format is None else format.activations
    if activations == "int8_token":
        return {"gfx950": "i8", "gfx942": "i8"}
    if activations.startswith("fp8"):
        return {"gfx950": "f8f6f4", "gfx942": "fp8"}
    return {"gfx950": "f8f6f4" if activations == "mxfp4" else "bf16", "gfx942": "bf16"}


def _example(
    stack: ExpertStack, format: QuantFormat | None, tokens: int, seed: int
) -> tuple[Any, ...]:
    """Uniform routing: every token's experts are distinct and equally likely."""
    keys = jax.random.split(jax.random.key(seed), 6)
    x = jax.random.normal(keys[0], (tokens, stack.hidden), jnp.bfloat16)
    wide, narrow = (stack.hidden, stack.inter), (stack.inter, stack.hidden)
    scores = jax.random.uniform(keys[4], (tokens, stack.experts))
    ids = jax.lax.top_k(scores, stack.top_k)[1]
    weights = jax.random.uniform(keys[5], ids.shape, minval=0.2, maxval=0.5)
    stacks = [
        _weights(key, stack.experts, inputs, outputs, format)
        for key, (inputs, outputs) in zip(keys[1:4], (wide, wide, narrow), strict=True)
    ]
    return (x, *stacks, ids, weights)


def _weights(
    key: Array, experts: int, inputs: int, outputs: int, format: QuantFormat | None
) -> Array | QuantizedArray:
    """Random weights with a standard deviation of about inputs^-0.5."""
    deviation = inputs**-0.5
    if format is None:
        return deviation * jax.random.normal(key, (experts, inputs, outputs), jnp.bfloat16)
    size = (experts, outputs, inputs // format.values_per_byte)
    shape = (experts, *format.scale_shape(outputs, inputs))
    if format.weights == "mxfp4":
        scale = jnp.full(shape, round(E8M0_BIAS + math.log2(deviation / 3)), jnp.uint8)
        return QuantizedArray(jax.random.bits(key, size, jnp.uint8), scale, format)
    if format.values_per_byte == 2:
        dtype = jnp.bfloat16 if format.weights == "int4_group" else jnp.float32
        scale = jnp.full(shape, deviation / 4.6, dtype)
        return QuantizedArray(jax.random.bits(key, size, jnp.uint8), scale, format)
    dtype = jnp.float8_e4m3fn if format.activations == "none" else gpu.current().fp8
    values = jax.random.normal(key, size, jnp.bfloat16).astype(dtype)
    return QuantizedArray(values, jnp.full(shape, deviation, jnp.float32), format)
