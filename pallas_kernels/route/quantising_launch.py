"""Launch whose first programs route tokens while the others quantise the experts' rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.grouped_matmul.activations import row_kernel
from pallas_kernels.route.choice import Asked
from pallas_kernels.row_kernel import row_block
from pallas_kernels.tile_product import Operand
from pallas_kernels.triton import launch, whole


def launch_with_rows(
    body: Callable[[Array, Any, Any], None],
    asked: Asked,
    out_shape: Any,
    *,
    programs: int,
    num_warps: int,
) -> tuple[Any, Operand | None]:
    """Launch `programs` programs of `body`, and one program for each row of x that quantises it.
    body(program, inputs, outputs) takes refs of (logits, bias, first expert) and of out_shape.
    Returns the outputs and the quantised rows, None if the experts multiply rows as they are."""
    arrays = asked.logits, asked.bias, asked.held.first
    quantiser = None if asked.x is None else row_kernel(asked.x, asked.format)
    x, quantised = (None, None) if quantiser is None else (asked.x, Operand(*quantiser.out))
    own_row = partial(row_block, row=lambda program: jnp.maximum(program - programs, 0))

    def kernel(arrays: Any, x: Any, out: Any, rows: Any) -> None:
        """Kernel body: route tokens or quantise a row. Grid: programs of the body, then one for
        each row of x. Blocks: arrays and out whole, x and rows a row. Limit: the body's registers.
        Units: those of body and `row_kernel`."""
        program = pl.program_id(0)
        if quantiser is None:
            body(program, arrays, out)
            return
        jax.lax.cond(
            program < programs,
            lambda: body(program, arrays, out),
            partial(quantiser.body, x, *jax.tree.leaves(rows)),
        )

    return launch(
        kernel,
        name="route",
        grid=(programs + (0 if x is None else len(x)),),
        in_specs=(jax.tree.map(whole, arrays), jax.tree.map(own_row, x)),
        out_specs=(jax.tree.map(whole, out_shape), jax.tree.map(own_row, quantised)),
        out_shape=(out_shape, quantised),
        num_warps=num_warps,
    )(arrays, x)
