"""Time products of few rows by both forms of `pallas_kernels.streamed`, for its table.

Run `python -m eagle3_tools.bench.cpu.products`. Products form a chain over matrices that take 16 MB
together, so that they come from memory or the last cache. A figure is the least CPU time of several
runs on one core, both forms in turn.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from eagle3_tools.bench.common.conditions import pin
from pallas_kernels import gpu
from pallas_kernels.streamed import (
    multiply_expert,
    multiply_matrix,
    stream_expert,
    stream_matrix,
)

ROWS = (1, 2, 3, 4, 8)
MATRICES = ((512, 8192), (512, 1536), (512, 512), (256, 256), (192, 192))
EXPERTS = ((512, 256), (256, 128), (192, 64))
BYTES, MOST_MATRICES = 2**24, 12
REPETITIONS = 10


def main() -> None:
    """Print microseconds, ordinary product : streams, by dtype, size and rows."""
    pin(None)
    for dtype in ("float32", "bfloat16"):
        sys.stdout.write(f"    {dtype:18}" + "".join(f"{rows:>8}    " for rows in ROWS) + "\n")
        for sizes, name, chain, forms in (
            (MATRICES, "", _matrix_chain, (multiply_matrix, stream_matrix)),
            (EXPERTS, "expert ", _expert_chain, (multiply_expert, stream_expert)),
        ):
            for inputs, outputs in sizes:
                stack = jnp.ones((_count(inputs, outputs), inputs, outputs), dtype) / inputs
                chains = [partial(chain, form) for form in forms]
                found = [_microseconds(chains, jnp.ones((n, inputs)), stack) for n in ROWS]
                cells = "".join(f"{ordinary:7.0f}:{streams:<4.0f}" for ordinary, streams in found)
                sys.stdout.write(f"    {name}{inputs} x {outputs}".ljust(22) + cells + "\n")
                sys.stdout.flush()


def _count(inputs: int, outputs: int) -> int:
    return min(MOST_MATRICES, max(2, BYTES // (4 * inputs * outputs)))


def _microseconds(
    chains: Sequence[Callable[..., Array]], x: Array, stack: Array
) -> tuple[float, ...]:
    weights = (stack, *stack)
    options = gpu.compiler_options()
    programs = [jax.jit(chain).lower(x, *weights).compile(options) for chain in chains]
    times: list[list[float]] = [[] for _ in programs]
    for _ in range(REPETITIONS):
        for program, own in zip(programs, times, strict=True):
            start = time.process_time()
            jax.block_until_ready(program(x, *weights))
            own.append((time.process_time() - start) / len(stack) * 1e6)
    return tuple(min(own) for own in times)


def _matrix_chain(
    multiply: Callable[[Array, Array], Array], x: Array, _: Array, *matrices: Array
) -> Array:
    for matrix in matrices:
        x = _following(x, multiply(x, matrix))
    return x


def _expert_chain(
    multiply: Callable[[Array, Array, Array], Array], x: Array, stack: Array, *_: Array
) -> Array:
    def step(expert: Array, x: Array) -> Array:
        return _following(x, multiply(x, stack, expert))

    return lax.fori_loop(0, len(stack), step, x)


def _following(x: Array, product: Array) -> Array:
    """Return rows for the next product that depend on this whole product."""
    return x + 1e-9 * product.sum(1, keepdims=True)


if __name__ == "__main__":
    main()
