"""Cases of `grouped_mlp` and `route`: decode and verify steps at the published shapes."""

from dataclasses import replace
from functools import partial
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eagle3_tools.kernel_cases.case import Case, forms
from eagle3_tools.kernel_cases.quantized import example_kernel, example_rows, matrix_instruction
from eagle3_tools.kernel_cases.shapes import DECODE_ROWS, EXPERTS, MOST_DECODE_ROWS, ExpertStack
from pallas_kernels.grouped_matmul import GROUPED_MLP
from pallas_kernels.grouped_matmul.activations import activations
from pallas_kernels.grouped_matmul.shared import GatedKernels
from pallas_kernels.grouped_matmul.tile_map import most_tiles
from pallas_kernels.grouped_matmul.tiles import row_tile
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.route import ROUTE, one_program
from pallas_kernels.route.choice import Asked, Held, RouterOptions, Routes

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
SCALING = {"kimi.experts": 2.827, "minimax.experts": 1.0}
LARGEST = 20 * 2**30
"""Largest size in bytes of a layer's experts, for which a GPU also has room for the reference."""


def cases() -> list[Case]:
    """Return cases of each model's formats whose experts fit into a GPU, and of routers."""
    routed = [
        grouped_mlp_case(stack, format, tokens)
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
    return routed + published + _route_cases()


def grouped_mlp_case(stack: ExpertStack, format: QuantFormat | None, tokens: int) -> Case:
    weights = 3 * stack.hidden * stack.inter
    hit = stack.experts * (1 - (1 - stack.top_k / stack.experts) ** tokens)
    return Case(
        **forms(GROUPED_MLP),
        shape=stack.name,
        variant=f"{_name(format)} tokens{tokens}",
        example=partial(_experts_example, stack, format, tokens),
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
    routed = grouped_mlp_case(stack, format, tokens)
    own = grouped_mlp_case(ExpertStack("shared", 1, 1, stack.hidden, stack.inter), None, tokens)

    def example(seed: int) -> tuple[Any, ...]:
        gate, up, down = (matrix[0] for matrix in own.example(seed + 1)[1])
        return *routed.example(seed), GatedKernels(gate, up, down)

    return replace(
        routed,
        variant=f"{routed.variant} shared",
        run=partial(_with_own, GROUPED_MLP.pallas),
        reference=partial(_with_own, GROUPED_MLP.reference),
        example=example,
        bytes_moved=routed.bytes_moved + own.bytes_moved,
        flops=routed.flops + own.flops,
    )


def _with_own(form: Any, *arrays: Any) -> Any:
    *routed, own = arrays
    return form(*routed, shared=own)


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


def _experts_example(
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


def _route_cases() -> list[Case]:
    return [
        route_case(stack, format, tokens)
        for stack in EXPERTS
        if stack.name.endswith("@tp8")
        for format in (None, *_quantised(stack))
        for tokens in (*DECODE_ROWS, MOST_DECODE_ROWS)
    ]


def _quantised(stack: ExpertStack) -> list[QuantFormat]:
    """List the formats whose rows are quantised in the router's launch."""
    formats = KIMI if stack.name.startswith("kimi") else MINIMAX
    return [format for format in formats if format and format.activations != "none"]


def route_case(stack: ExpertStack, format: QuantFormat | None, tokens: int) -> Case:
    options = RouterOptions(stack.top_k, True, SCALING[stack.name.removesuffix("@tp8")])
    rows = 0 if format is None else tokens * stack.hidden
    few = one_program.fits(tokens, stack.experts, stack.top_k)
    return Case(
        operation="route",
        shape=stack.name,
        variant=f"tokens{tokens}" + ("" if format is None else f" {format.activations}"),
        run=partial(_route, ROUTE.pallas, options, format),
        reference=partial(_route, _route_reference, options, format),
        example=partial(_route_example, stack, tokens),
        kernels=("route",) if few else ("route", "route_map"),
        bytes_moved=4 * stack.experts * (tokens + 1) + 16 * tokens * stack.top_k + 3 * rows,
        flops=0,
        decode=True,
    )


def _route(form: Any, options: RouterOptions, format: QuantFormat | None, *arrays: Array) -> Any:
    x, logits, bias = arrays
    held = Held(None, logits.shape[1])
    return form(Asked(logits, bias, options, x if format else None, format, held))


def _route_reference(asked: Asked) -> Routes:
    """Run the reference and quantise the rows as `grouped_mlp` would."""
    rows = None if asked.x is None else activations(asked.x, asked.format)
    return ROUTE.reference(asked)._replace(rows=rows)


def _route_example(stack: ExpertStack, tokens: int, seed: int) -> tuple[Array, ...]:
    logits, bias, x = jax.random.split(jax.random.key(seed), 3)
    shape = (tokens, stack.experts)
    return (
        jax.random.normal(x, (tokens, stack.hidden), jnp.bfloat16),
        jax.random.normal(logits, shape),
        jax.random.normal(bias, shape[1:]) / 16,
    )
