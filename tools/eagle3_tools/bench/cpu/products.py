"""Time products of few rows by both forms of `pallas_kernels.streamed`, for its table.

Run `python -m eagle3_tools.bench.cpu.products`. Products form a chain over matrices that take 16 MB
together, so that they come from memory or the last cache. A figure is the least CPU time of several
runs on one core, both forms in turn.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from eagle3_tools.bench.common.conditions import pin
from pallas_kernels import gpu
from pallas_kernels.streamed import stream_expert, stream_matrix

ROWS = (1, 2, 3, 4)
MATRICES = ((512, 8192), (512, 1536), (512, 512), (192, 192))
EXPERTS = ((512, 256), (256, 128), (192, 64))
BYTES = 2**24
REPETITIONS = 15


def main() -> None:
    """Print microseconds, ordinary product : streams, by size and rows."""
    pin(None)
    for stacked, sizes in ((False, MATRICES), (True, EXPERTS)):
        for inputs, outputs in sizes:
            found = [_microseconds(stacked, rows, inputs, outputs) for rows in ROWS]
            cells = "".join(f"{ordinary:7.0f}:{streams:<5.0f}" for ordinary, streams in found)
            name = f"{'expert ' * stacked}{inputs} x {outputs}"
            sys.stdout.write(f"    {name:18}{cells}\n")
            sys.stdout.flush()


def _microseconds(stacked: bool, rows: int, inputs: int, outputs: int) -> list[float]:
    count = max(2, BYTES // (4 * inputs * outputs))
    x, stack = jnp.ones((rows, inputs)), jnp.ones((count, inputs, outputs)) / inputs
    chain, weights = (_expert_chain, stack) if stacked else (_matrix_chain, list(stack))
    forms: tuple[Any, Any] = (
        (lambda x, stack, index: x @ stack[index], stream_expert)
        if stacked
        else (jnp.matmul, stream_matrix)
    )
    options = gpu.compiler_options()
    programs = [
        jax.jit(chain(form)).lower(x, weights).compile(compiler_options=options) for form in forms
    ]
    times: list[list[float]] = [[], []]
    for _ in range(REPETITIONS):
        for program, own in zip(programs, times, strict=True):
            start = time.process_time()
            jax.block_until_ready(program(x, weights))
            own.append((time.process_time() - start) / count * 1e6)
    return [min(own) for own in times]


def _matrix_chain(form: Callable[..., Array]) -> Callable[..., Array]:
    def run(x: Array, matrices: list[Array]) -> Array:
        for matrix in matrices:
            x = _following(x, form(x, matrix))
        return x

    return run


def _expert_chain(form: Callable[..., Array]) -> Callable[..., Array]:
    def run(x: Array, stack: Array) -> Array:
        return lax.fori_loop(0, len(stack), lambda i, x: _following(x, form(x, stack, i)), x)

    return run


def _following(x: Array, product: Array) -> Array:
    """Return rows for the next product that depend on this whole product."""
    return x + 1e-9 * product.sum(1, keepdims=True)


if __name__ == "__main__":
    main()
