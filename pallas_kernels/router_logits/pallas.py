"""bfloat16 rows times a float32 router in one launch, widened in registers."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.tile_product import Operand, ProductTiles, products, store_tile
from pallas_kernels.triton import launch, whole

MOST_ROWS = 1024
"""Those of a decode or verify step."""


def refusal(x: Array, kernel: Array) -> str | None:
    """Why the kernel cannot run on these."""
    if x.dtype != jnp.bfloat16 or kernel.dtype != jnp.float32:
        return f"expected bfloat16 times float32, got {x.dtype} times {kernel.dtype}"
    return None


def tiles(rows: int) -> ProductTiles:
    """Small ones, for many programs: all weights of a router are 3 MiB."""
    return ProductTiles(16, 16, 128) if rows <= 256 else ProductTiles(64, 32, 64)


def router_logits(
    x: Float[Array, "tokens hidden"], kernel: Float[Array, "hidden experts"]
) -> Float[Array, "tokens experts"]:
    """See `pallas_kernels.router_logits.api.router_logits`."""
    chosen, out = tiles(len(x)), jax.ShapeDtypeStruct((len(x), kernel.shape[1]), jnp.float32)
    return launch(
        partial(_run, tiles=chosen),
        name="router_logits",
        grid=(pl.cdiv(out.shape[0], chosen.rows), pl.cdiv(out.shape[1], chosen.columns)),
        in_specs=[whole(x), whole(kernel)],
        out_specs=whole(out),
        out_shape=out,
        num_warps=chosen.warps,
        num_stages=chosen.stages,
    )(x, kernel)


def _run(x: Any, kernel: Any, out: Any, *, tiles: ProductTiles) -> None:
    """One tile of the product.

    Grid: tiles of rows x tiles of columns. Blocks: x and kernel whole; a program multiplies [rows,
    step], widened in registers, with [step, columns]. Limit: launches, not work: a router has 3
    MiB. Units: float32, not rounded to TF32.
    """
    rows = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)
    columns = pl.program_id(1) * tiles.columns + jnp.arange(tiles.columns)
    (total,) = products(Operand(x), [Operand(kernel)], rows, columns, tiles.step)
    store_tile(out, rows, columns, total)
