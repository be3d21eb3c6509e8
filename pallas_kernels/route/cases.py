"""The routers of decode and verify steps at the published shapes."""

from functools import partial

import jax

from pallas_kernels.case import Case
from pallas_kernels.route import pallas, reference
from pallas_kernels.route.choice import Choice
from pallas_kernels.shapes import DECODE_ROWS, EXPERTS, ExpertStack

SCALING = {"kimi.experts": 2.827, "minimax.experts": 1.0}


def cases() -> list[Case]:
    """Every row count that one program holds; a router is the same on every device."""
    return [
        _case(stack, tokens)
        for stack in EXPERTS
        if stack.name.endswith("@tp8")
        for tokens in DECODE_ROWS
        if tokens <= pallas.MOST_TOKENS
    ]


def _case(stack: ExpertStack, tokens: int) -> Case:
    choice = Choice(stack.top_k, True, SCALING[stack.name.removesuffix("@tp8")])
    return Case(
        operation="route",
        shape=stack.name,
        variant=f"tokens{tokens}",
        run=partial(pallas.route, choice=choice),
        reference=partial(reference.route, choice=choice),
        example=partial(_example, stack, tokens),
        kernels=("route",),
        matrix={"gfx950": "", "gfx942": ""},
        bytes_moved=4 * stack.experts * (tokens + 1) + 16 * tokens * stack.top_k,
        flops=0,
        decode=True,
    )


def _example(stack: ExpertStack, tokens: int, seed: int) -> tuple[jax.Array, jax.Array]:
    logits, bias = jax.random.split(jax.random.key(seed))
    shape = (tokens, stack.experts)
    return jax.random.normal(logits, shape), jax.random.normal(bias, shape[1:]) / 16
