"""A blocked matrix product, as good or as bad as its tile."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from eagle3_tools.kernel_cases.case import Case
from pallas_kernels import triton

ROWS, INPUTS, OUTPUTS = 256, 2048, 1024


def matmul(
    tile: int, depth: int = 64, stages: int = 2, narrow: bool = False
) -> Callable[[Array, Array], Array]:
    """x @ w in tiles of tile x tile, `depth` inputs at a time; narrow: in an order of the weights
    of which the compiler cannot know that neighbours are neighbours."""

    def kernel(x: Any, w: Any, out: Any) -> None:
        def add(step: Array, total: Array) -> Array:
            inputs = pl.ds(step * depth, depth)
            rows = step * depth + jnp.arange(depth)
            columns = jnp.arange(tile) ^ (step * 2 if narrow else 0)
            weights = triton.load(w.at[rows[:, None], columns[None, :]])
            return total + triton.dot(triton.load(x.at[:, inputs]), weights)

        start = jnp.zeros(out.shape, jnp.float32)
        total = jax.lax.fori_loop(0, x.shape[1] // depth, add, start)
        triton.store(out, total.astype(out.dtype))

    def run(x: Array, w: Array) -> Array:
        rows, outputs = x.shape[0], w.shape[1]
        return triton.launch(
            kernel,
            name="small_matmul",
            grid=(rows // tile, outputs // tile),
            in_specs=[
                pl.BlockSpec((tile, x.shape[1]), lambda i, j: (i, 0)),
                pl.BlockSpec((w.shape[0], tile), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((tile, tile), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((rows, outputs), x.dtype),
            num_stages=stages,
        )(x, w)

    return run


def example(seed: int, inputs: int = INPUTS, outputs: int = OUTPUTS) -> tuple[Array, Array]:
    keys = jax.random.split(jax.random.key(seed))
    shapes = (ROWS, inputs), (inputs, outputs)
    x, w = (jax.random.normal(k, s, jnp.bfloat16) for k, s in zip(keys, shapes, strict=True))
    return x, w


def small_case(run: Callable[..., Any], **changed: Any) -> Case:
    fields: dict[str, Any] = {
        "operation": "small_matmul",
        "shape": "small@tp4",
        "variant": "bf16",
        "run": run,
        "reference": lambda x, w: x @ w,
        "example": example,
        "kernels": ("small_matmul",),
        "matrix": {"gfx950": "bf16", "gfx942": "bf16"},
        "bytes_moved": 2 * (ROWS * INPUTS + INPUTS * OUTPUTS + ROWS * OUTPUTS),
        "flops": 2 * ROWS * INPUTS * OUTPUTS,
        "decode": True,
    }
    return Case(**{**fields, **changed})
