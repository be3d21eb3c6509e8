"""Cases of `grouped_mlp`: decode, verify and prefill steps at the published shapes."""

from dataclasses import replace
from functools import partial
from math import comb
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.case import Case
from pallas_kernels.grouped_matmul import api, pallas, reference
from pallas_kernels.grouped_matmul.shared import GatedKernels
from pallas_kernels.grouped_matmul.tile_map import most_tiles
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.examples import example_kernel, example_rows, matrix_instruction
from pallas_kernels.shapes import DECODE_ROWS, EXPERTS, ExpertStack

KIMI = [
    None,
    QuantFormat("fp8_channel", "fp8_token"),
    QuantFormat("int4_group"),
    QuantFormat("int4_channel", "int8_token"),
    QuantFormat("mxfp4", "mxfp4"),
]
MINIMAX = [None, QuantFormat("fp8_block", "fp8_group")]
REQUANTISED = 8e-2
"""Tolerance for formats that quantise rows between the two products. The reference itself differs
in bfloat16 from float32 by 0.03 (float8) and 0.05 (MXFP4)."""
LARGEST = 20 * 2**30
"""Largest size in bytes of a layer's experts, for which a GPU also has room for the reference."""


def cases() -> list[Case]:
    """Return cases of each model's formats whose layer of experts fits into a GPU."""
    routed = [
        make_case(stack, format, tokens)
        for stack in EXPERTS
        for format in (KIMI if stack.name.startswith("kimi") else MINIMAX)
        if stack.experts * 3 * stack.hidden * stack.inter * _bytes(format) < LARGEST
        for tokens in DECODE_ROWS
    ]
    published = [
        with_shared(stack, QuantFormat("int4_group"), tokens)
        for stack in EXPERTS
        if stack.name in ("kimi.experts@tp4", "kimi.experts@tp8")
        for tokens in DECODE_ROWS
        # With this many rows, a row array is as large as a weight, and the check for copied weights
        # would report it.
        if tokens != stack.inter
    ]
    return routed + published


def make_case(stack: ExpertStack, format: QuantFormat | None, tokens: int) -> Case:
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
        matrix=matrix_instruction(format),
        bytes_moved=round(hit * weights * _bytes(format)) + tokens * stack.hidden * 4,
        flops=2 * tokens * stack.top_k * weights,
        decode=tokens <= 64,
        touched=hit / stack.experts,
        live=_tiles_in_use(stack, tokens) / _most_tiles(stack, tokens),
        tolerance=2e-2 if format is None or format.activations == "none" else REQUANTISED,
    )


def with_shared(stack: ExpertStack, format: QuantFormat | None, tokens: int) -> Case:
    """Add a bfloat16 shared expert to a case, as Kimi-K2.5 in INT4 has."""
    routed = make_case(stack, format, tokens)
    own = make_case(ExpertStack("shared", 1, 1, stack.hidden, stack.inter), None, tokens)

    def example(seed: int) -> tuple[Any, ...]:
        gate, up, down = (matrix[0] for matrix in own.example(seed + 1)[1])
        return *routed.example(seed), GatedKernels(gate, up, down)

    return replace(
        routed,
        variant=f"{routed.variant} shared",
        run=partial(_run_both, "pallas"),
        reference=partial(_run_both, "reference"),
        example=example,
        bytes_moved=routed.bytes_moved + own.bytes_moved,
        flops=routed.flops + own.flops,
    )


def _run_both(
    implementation: str, x: Any, stacks: GatedKernels, ids: Any, weights: Any, own: GatedKernels
) -> Any:
    gate, up, down = stacks
    return api.grouped_mlp(
        x, gate, up, down, ids, weights, shared=own, implementation=implementation
    )


def _most_tiles(stack: ExpertStack, tokens: int) -> int:
    rows = row_tile(tokens, stack.top_k, stack.experts)
    return most_tiles(tokens * stack.top_k, stack.experts, rows)


def _tiles_in_use(stack: ExpertStack, tokens: int) -> float:
    """Return the expected number of non-empty tiles: an expert's number of tokens is binomial."""
    rows, chosen = row_tile(tokens, stack.top_k, stack.experts), stack.top_k / stack.experts
    return stack.experts * sum(
        -(-count // rows) * comb(tokens, count) * chosen**count * (1 - chosen) ** (tokens - count)
        for count in range(1, tokens + 1)
    )


def _name(format: QuantFormat | None) -> str:
    if format is None:
        return "bf16"
    return format.weights + ("" if format.activations == "none" else f"_{format.activations}")


def _bytes(format: QuantFormat | None) -> float:
    """Return bytes per weight, including group scales; scales of rows and blocks are negligible."""
    if format is None:
        return 2.0
    stored = format.stored
    per_group = jnp.dtype(stored.scale_dtype).itemsize / stored.group if stored.group else 0
    return stored.bits / 8 + per_group


def _example(
    stack: ExpertStack, format: QuantFormat | None, tokens: int, seed: int
) -> tuple[Any, ...]:
    """Draw uniform routing: every token's experts are distinct and equally likely."""
    keys = jax.random.split(jax.random.key(seed), 6)
    wide, narrow = (stack.hidden, stack.inter), (stack.inter, stack.hidden)
    scores = jax.random.uniform(keys[4], (tokens, stack.experts))
    ids = jax.lax.top_k(scores, stack.top_k)[1]
    weights = jax.random.uniform(keys[5], ids.shape, minval=0.2, maxval=0.5)
    gate, up, down = (
        example_kernel(key, inputs, outputs, format, stack.experts)
        for key, (inputs, outputs) in zip(keys[1:4], (wide, wide, narrow), strict=True)
    )
    x = example_rows(keys[0], tokens, stack.hidden)
    return x, GatedKernels(gate, up, down), ids, weights
