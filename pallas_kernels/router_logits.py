"""Scores of a router. The kernel widens bfloat16 rows in registers; XLA takes another launch."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.dispatch import Operation
from pallas_kernels.tile_product import Operand, ProductTiles, launch_tiles, multiply_tile

MOST_ROWS = 1024
"""Most rows of a decode or verify step."""


def router_logits(
    x: Float[Array, "tokens hidden"],
    kernel: Float[Array, "hidden experts"],
    *,
    implementation: str | None = None,
) -> Float[Array, "tokens experts"]:
    """Compute x @ kernel in float32 for all input dtypes: float32 operands are not rounded.

    Products of bfloat16 are exact in float32. Operands of one dtype and the many rows of a prefill
    use the library's product, which is fast for them. With a float32 router, the library would
    convert bfloat16 rows in a separate launch. Raises ValueError on shapes that do not fit and, if
    there is a choice, on an implementation that cannot run.
    """
    if x.shape[1] != kernel.shape[0]:
        raise ValueError(
            f"router_logits: expected x [tokens, hidden] and kernel [hidden, experts], got "
            f"{x.shape} and {kernel.shape}"
        )
    if x.dtype == kernel.dtype or len(x) > MOST_ROWS:
        return _reference(x, kernel)
    return ROUTER_LOGITS(implementation, x, kernel)


def _reference(x: Array, kernel: Array) -> Array:
    # By default a GPU would round float32 to TF32 and choose other experts.
    precision = lax.Precision.HIGHEST if kernel.dtype == jnp.float32 else None
    return jnp.matmul(x, kernel, precision=precision, preferred_element_type=jnp.float32)


def _refuse(x: Array, kernel: Array) -> str | None:
    if x.dtype != jnp.bfloat16 or kernel.dtype != jnp.float32:
        return f"expected bfloat16 times float32, got {x.dtype} times {kernel.dtype}"
    return None


def _launch(x: Array, kernel: Array) -> Array:
    # Use small tiles for many programs: all weights of a router are 3 MiB. An AMD GPU has one step
    # of a program in flight, other GPUs one per stage.
    step = 512 if gpu.current().is_amd else 128
    tiles = ProductTiles(16, 16, step) if len(x) <= 256 else ProductTiles(64, 32, 64)
    w = Operand(kernel)
    (out,) = launch_tiles(
        multiply_tile, "router_logits", tiles, Operand(x), [w], [w.outputs], jnp.float32
    )
    return out[0]


ROUTER_LOGITS = Operation("router_logits", reference=_reference, pallas=_launch, refuse=_refuse)
