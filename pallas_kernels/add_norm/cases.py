"""Cases of `add_norm`: rows of a decode or verify step; the same on every device."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.add_norm import pallas, reference
from pallas_kernels.case import Case
from pallas_kernels.rms_norm import Norm
from pallas_kernels.shapes import DECODE_ROWS, EXPERTS


def cases() -> list[Case]:
    widths = {stack.name: stack.hidden for stack in EXPERTS if stack.name.endswith("@tp8")}
    return [
        make_case(name, hidden, rows) for name, hidden in widths.items() for rows in DECODE_ROWS
    ]


def make_case(name: str, hidden: int, rows: int) -> Case:
    return Case(
        operation="add_norm",
        shape=name,
        variant=f"rows{rows}",
        run=partial(_run, pallas.add_norm),
        reference=partial(_run, reference.add_norm),
        example=partial(_example, hidden, rows),
        kernels=("add_norm",),
        bytes_moved=8 * rows * hidden + 2 * hidden,
        flops=5 * rows * hidden,
        decode=rows <= 64,
    )


def _run(operation: Any, rows: tuple[Array, Array], weight: Array) -> Any:
    return operation(*rows, Norm(weight, 1e-5))


def _example(hidden: int, rows: int, seed: int) -> tuple[tuple[Array, Array], Array]:
    keys = jax.random.split(jax.random.key(seed))
    x, added = (jax.random.normal(key, (rows, hidden), jnp.bfloat16) for key in keys)
    return (x, added), jnp.ones(hidden, jnp.bfloat16)
