"""GPU kernel of `router_logits`: bfloat16 rows times a float32 router, widened in registers."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import gpu
from pallas_kernels.tile_product import Operand, ProductTiles, launch_tiles, multiply_tile

MOST_ROWS = 1024
"""Most rows of a decode or verify step."""


def refusal(x: Array, kernel: Array) -> str | None:
    """Return why the kernel cannot run on these operands, or None if it can."""
    if x.dtype != jnp.bfloat16 or kernel.dtype != jnp.float32:
        return f"expected bfloat16 times float32, got {x.dtype} times {kernel.dtype}"
    return None


def router_logits(
    x: Float[Array, "tokens hidden"], kernel: Float[Array, "hidden experts"]
) -> Float[Array, "tokens experts"]:
    """Implement `pallas_kernels.router_logits.api.router_logits` as a GPU kernel."""
    # Use small tiles for many programs: all weights of a router are 3 MiB. An AMD GPU has one step
    # of a program in flight, other GPUs one per stage.
    step = 512 if gpu.current().is_amd else 128
    tiles = ProductTiles(16, 16, step) if len(x) <= 256 else ProductTiles(64, 32, 64)
    w = Operand(kernel)
    (out,) = launch_tiles(
        multiply_tile, "router_logits", tiles, Operand(x), [w], [w.outputs], jnp.float32
    )
    return out[0]
