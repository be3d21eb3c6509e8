"""Absorbed queries of latent attention. XLA would slice and transpose them for each part."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.dispatch import Operation
from pallas_kernels.paged.kernel import padded, rows_at
from pallas_kernels.rotation import rotate_interleaved
from pallas_kernels.triton import dot, launch, store, whole

ROWS, COLUMNS = 64, 128
"""Largest tile. Its product spans all nope inputs at once, without a loop."""


def absorb_query(
    q: Float[Array, "batch q_len heads qk"],
    key_kernel: Float[Array, "heads kv_lora nope"],
    cos: Float[Array, "batch q_len half"],
    sin: Float[Array, "batch q_len half"],
    *,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch q_len heads kv_lora"], Float[Array, "batch q_len heads rope"]]:
    """Absorb W_UK into the queries of latent attention: multiply one part, rotate the rest.

    A row of q holds nope values, which are multiplied by the head's W_UK, then 2 * half values that
    are rotated in adjacent pairs by cos and sin (float32). Results have q's dtype; products and
    rotation are computed in float32.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    heads, _, nope = key_kernel.shape
    if q.shape[2:] != (heads, nope + 2 * cos.shape[-1]) or cos.shape[:2] != q.shape[:2]:
        raise ValueError(
            "absorb_query: expected q [b, q, heads, nope + rope], key_kernel [heads, kv_lora, "
            f"nope], cos and sin [b, q, rope / 2]; got {q.shape}, {key_kernel.shape}, {cos.shape}"
        )
    return ABSORB_QUERY(implementation, q, key_kernel, cos, sin)


def _reference(q: Array, key_kernel: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    nope, rope = jnp.split(q, [key_kernel.shape[-1]], axis=-1)
    latent = jnp.einsum("bqhd,hcd->bqhc", nope, key_kernel)
    return latent, rotate_interleaved(rope, cos, sin)


def _refuse(q: Array, key_kernel: Array, cos: Array, sin: Array) -> str | None:
    if q.dtype not in (jnp.bfloat16, jnp.float32) or key_kernel.dtype != q.dtype:
        return f"expected bfloat16 or float32 twice, got {q.dtype} and {key_kernel.dtype}"
    return None


def _launch(q: Array, key_kernel: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    batch, q_len, heads, qk = q.shape
    rows, (_, kv_lora, nope), half = batch * q_len, key_kernel.shape, cos.shape[-1]
    tile = min(padded(rows, 16), ROWS if q.dtype == jnp.bfloat16 else 16)
    columns = min(padded(kv_lora, 16), COLUMNS)

    def of_head(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((rows, None, width), lambda h, c, r: (0, h, 0))

    tables = [table.reshape(rows, half) for table in (cos, sin)]
    latent, rope = launch(
        partial(_absorb, tile=tile, columns=columns),
        name="absorb_query",
        grid=(heads, pl.cdiv(kv_lora, columns), pl.cdiv(rows, tile)),
        in_specs=[
            of_head(qk),
            pl.BlockSpec((None, kv_lora, nope), lambda h, c, r: (h, 0, 0)),
            *map(whole, tables),
        ],
        out_specs=(of_head(kv_lora), of_head(2 * half)),
        out_shape=(
            jax.ShapeDtypeStruct((rows, heads, kv_lora), q.dtype),
            jax.ShapeDtypeStruct((rows, heads, 2 * half), q.dtype),
        ),
    )(q.reshape(rows, heads, qk), key_kernel, *tables)
    return latent.reshape(*q.shape[:3], -1), rope.reshape(*q.shape[:3], -1)


def _absorb(
    q: Any, kernel: Any, cos: Any, sin: Any, latent: Any, rope: Any, *, tile: int, columns: int
) -> None:
    """Kernel body: a tile of rows times W_UK, and the remainder of each row rotated.

    Grid: heads x tiles of latents x tiles of rows. Blocks: q [rows, qk] and W_UK [kv_lora, nope] of
    one head; a product of [tile, nope] with [columns, nope], nope in one step, summed in float32.
    Limit: registers, 104 at 64 x 128. Units: rows in q's dtype, cos and sin float32 [rows, half].
    """
    (rows, _), (kv_lora, nope) = q.shape, kernel.shape
    row = pl.program_id(2) * tile + jnp.arange(tile)
    column = pl.program_id(1) * columns + jnp.arange(columns)
    inner = jnp.arange(padded(nope, 16))
    is_row, is_column, is_inner = row < rows, column < kv_lora, inner < nope
    found = dot(
        rows_at(q, row, inner, is_row, is_inner),
        rows_at(kernel, column, inner, is_column, is_inner),
        trans_b=True,
    )
    store(
        latent.at[row[:, None], column[None, :]],
        found.astype(latent.dtype),
        mask=is_row[:, None] & is_column[None, :],
    )

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        _rotate(q, nope, cos, sin, rope, row, is_row)


def _rotate(q: Any, start: int, cos: Any, sin: Any, rope: Any, row: Array, is_row: Array) -> None:
    """Rotate the columns from `start` on of a tile of rows, as adjacent pairs in float32."""
    half = cos.shape[1]
    pair = jnp.arange(padded(half))
    is_pair = pair < half
    mask = is_row[:, None] & is_pair[None, :]

    def pairs(ref: Any, column: Array) -> Array:
        return rows_at(ref, row, column, is_row, is_pair).astype(jnp.float32)

    even, odd = pairs(q, start + 2 * pair), pairs(q, start + 2 * pair + 1)
    c, s = pairs(cos, pair), pairs(sin, pair)
    for column, turned in ((2 * pair, even * c - odd * s), (2 * pair + 1, odd * c + even * s)):
        store(rope.at[row[:, None], column[None, :]], turned.astype(rope.dtype), mask=mask)


ABSORB_QUERY = Operation("absorb_query", reference=_reference, pallas=_launch, refuse=_refuse)
