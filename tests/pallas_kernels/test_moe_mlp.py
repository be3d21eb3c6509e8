"""The mixture as one operation against float64 loops, on the CPU's forms and on the kernels."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from sweeps import sweep
from test_grouped_mlp import loops as sum_of_experts

from pallas_kernels import GatedKernels, RouterOptions, moe_mlp
from pallas_kernels.dispatch import prefer

TOKENS, HIDDEN, INTER, EXPERTS = 5, 160, 96, 6
OPTIONS = RouterOptions(top_k=2, normalise=True, scaling=2.5)
RNG = np.random.default_rng(11)


def normal(*shape: int, scale: float = 1.0) -> NDArray[np.float32]:
    return (scale * RNG.normal(size=shape)).astype(np.float32)


def kernels(*stack: int, inter: int) -> GatedKernels:
    shapes = (HIDDEN, inter), (HIDDEN, inter), (inter, HIDDEN)
    return GatedKernels(*(jnp.asarray(normal(*stack, *shape, scale=0.1)) for shape in shapes))


X, LOGITS, BIAS = normal(TOKENS, HIDDEN), normal(TOKENS, EXPERTS), normal(EXPERTS, scale=0.1)
STACKS = kernels(EXPERTS, inter=INTER)


def oracle(shared: GatedKernels | None, held: range) -> NDArray[np.float64]:
    scores = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    ids = np.argsort(-(scores + BIAS))[:, : OPTIONS.top_k]
    weights = np.take_along_axis(scores, ids, 1)
    weights *= OPTIONS.scaling / weights.sum(1, keepdims=True) * np.isin(ids, held)
    out = sum_of_experts((X, *map(np.asarray, STACKS), ids, weights))
    if shared is None:
        return out
    stacks = [np.asarray(kernel)[None] for kernel in shared]
    return out + sum_of_experts((X, *stacks, np.zeros((TOKENS, 1)), np.ones((TOKENS, 1))))


@pytest.mark.parametrize(
    ("implementation", "inter"),
    sweep(
        product(["xla", "reference", "pallas"], [None, INTER, 32]),
        [("xla", 32), ("pallas", INTER)],
    ),
)
def test_equals_float64_loops(implementation: str, inter: int | None) -> None:
    """inter: of a shared expert, which joins routed ones of its shape; None without one."""
    shared = None if inter is None else kernels(inter=inter)
    with prefer(implementation):
        call = jax.jit(lambda *arrays: moe_mlp(*arrays, options=OPTIONS, shared=shared))
        found = call(X, LOGITS, BIAS, STACKS)
    np.testing.assert_allclose(found, oracle(shared, range(EXPERTS)), atol=2e-4)


@pytest.mark.parametrize("implementation", sweep(["xla", "reference", "pallas"], ["xla", "pallas"]))
def test_a_device_adds_what_its_own_experts_give(implementation: str) -> None:
    part = GatedKernels(*(stack[2:5] for stack in STACKS))
    with prefer(implementation):
        call = jax.jit(lambda *arrays, first: moe_mlp(*arrays, options=OPTIONS, first=first))
        found = call(X, LOGITS, BIAS, part, first=jnp.int32(2))
    np.testing.assert_allclose(found, oracle(None, range(2, 5)), atol=2e-4)
