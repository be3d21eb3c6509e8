"""Cases of `route`: decode and verify steps at the published shapes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.case import Case
from pallas_kernels.grouped_matmul.cases import KIMI, MINIMAX
from pallas_kernels.grouped_matmul.rows.activations import activations
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.route import one_program, pallas, reference
from pallas_kernels.route.choice import Asked, Held, RouterOptions, Routes
from pallas_kernels.shapes import DECODE_ROWS, EXPERTS, MOST_DECODE_ROWS, ExpertStack

SCALING = {"kimi.experts": 2.827, "minimax.experts": 1.0}


def cases() -> list[Case]:
    """Return the cases at one TP: a router is the same on every device."""
    return [
        make_case(stack, format, tokens)
        for stack in EXPERTS
        if stack.name.endswith("@tp8")
        for format in (None, *_quantised(stack))
        for tokens in (*DECODE_ROWS, MOST_DECODE_ROWS)
    ]


def _quantised(stack: ExpertStack) -> list[QuantFormat]:
    """List the formats whose rows are quantised in the router's launch."""
    formats = KIMI if stack.name.startswith("kimi") else MINIMAX
    return [format for format in formats if format and format.activations != "none"]


def make_case(stack: ExpertStack, format: QuantFormat | None, tokens: int) -> Case:
    options = RouterOptions(stack.top_k, True, SCALING[stack.name.removesuffix("@tp8")])
    rows = 0 if format is None else tokens * stack.hidden
    few = one_program.fits(tokens, stack.experts, stack.top_k)
    return Case(
        operation="route",
        shape=stack.name,
        variant=f"tokens{tokens}" + ("" if format is None else f" {format.activations}"),
        run=partial(_run, pallas.route, options, format),
        reference=partial(_run, _reference, options, format),
        example=partial(_example, stack, tokens),
        kernels=("route",) if few else ("route", "route_map"),
        bytes_moved=4 * stack.experts * (tokens + 1) + 16 * tokens * stack.top_k + 3 * rows,
        flops=0,
        decode=True,
    )


def _run(operation: Any, options: RouterOptions, format: QuantFormat | None, *arrays: Array) -> Any:
    x, logits, bias = arrays
    held = Held(None, logits.shape[1])
    return operation(Asked(logits, bias, options, x if format else None, format, held))


def _reference(asked: Asked) -> Routes:
    """Run the reference and quantise the rows as `grouped_mlp` would."""
    rows = None if asked.x is None else activations(asked.x, asked.format)
    return reference.route(asked)._replace(rows=rows)


def _example(stack: ExpertStack, tokens: int, seed: int) -> tuple[Array, ...]:
    logits, bias, x = jax.random.split(jax.random.key(seed), 3)
    shape = (tokens, stack.experts)
    return (
        jax.random.normal(x, (tokens, stack.hidden), jnp.bfloat16),
        jax.random.normal(logits, shape),
        jax.random.normal(bias, shape[1:]) / 16,
    )
