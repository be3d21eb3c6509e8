"""Attention of rows to the rows of their own item, such as the patches of one image.

In the kernel a tile of one head's queries attends to its items' key tiles. An item's rows are
contiguous, so two numbers say which keys a row sees. Heads are laid out one after the other and
padded to whole products, so that no load of the loop has a mask.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from pallas_kernels import gpu
from pallas_kernels.dispatch import Operation
from pallas_kernels.triton import dot, launch, load, store, whole
from pallas_kernels.tuning import tuned

BLOCK = 256
"""Query rows at a time in the reference: scores are [heads, BLOCK, n]."""
QUERIES, KEYS = 128, 256
"""Rows at a time on a CPU. A head's [QUERIES, KEYS] scores stay in a core's cache."""
LOWEST = -1e30
"""Score of masked keys in the kernel: finite, because -inf - -inf is NaN."""
PIECE = 16
"""Fewest columns of a product in the kernel."""


def item_attention(
    q: Float[Array, "n heads dim"],
    k: Float[Array, "n heads dim"],
    v: Float[Array, "n heads dim"],
    items: Int[Array, " n"],
    scale: float,
    *,
    implementation: str | None = None,
) -> Float[Array, "n heads dim"]:
    """Compute softmax(scale * q k^T) v over the rows of each row's own item, without causal mask.

    items: the item number of each row. It never decreases, so an item's rows are contiguous. No
    implementation stores the scores of all pairs of rows.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    if not q.shape == k.shape == v.shape or items.shape != q.shape[:1]:
        raise ValueError(
            f"item_attention: q {q.shape}, k {k.shape} and v {v.shape} must be (n, heads, dim) "
            f"alike, with items (n,), got {items.shape}"
        )
    return ITEM_ATTENTION(implementation, q, k, v, items, scale)


def _reference(q: Array, k: Array, v: Array, items: Array, scale: float) -> Array:
    def attend(row: tuple[Array, Array]) -> Array:
        query, item = row
        scores = jnp.einsum("hd,khd->hk", query, k, preferred_element_type=jnp.float32) * scale
        probs = jax.nn.softmax(jnp.where(items == item, scores, -jnp.inf), axis=-1)
        return jnp.einsum("hk,khd->hd", probs.astype(v.dtype), v)

    return lax.map(attend, (q, items), batch_size=BLOCK)


def _on_cpu(q: Array, k: Array, v: Array, items: Array, scale: float) -> Array:
    """Attend blocks of queries to the key blocks of their items, one head after the other."""
    size, width = min(QUERIES, len(q)), min(KEYS, len(q))
    of_queries, of_keys = (
        _in_blocks(items, rows, fill=jnp.iinfo(items.dtype).max) for rows in (size, width)
    )
    every = of_keys.reshape(-1)

    def of_head(head: tuple[Array, Array, Array]) -> Array:
        queries = _in_blocks(head[0], size)
        keys, values = (_in_blocks(x, width) for x in head[1:])

        def attend(of_block: tuple[Array, Array]) -> Array:
            query, own = of_block

            def meet(i: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                same = own[:, None] == of_keys[i]
                return _meet(state, query, keys[i], values[i], same, scale)

            unseen = jnp.zeros((size, 1))
            start = (unseen - jnp.inf, unseen, jnp.zeros(query.shape))
            first = jnp.searchsorted(every, own[0], side="left") // width
            end = -(-jnp.searchsorted(every, own[-1], side="right") // width)
            _, mass, total = lax.fori_loop(first, end, meet, start)
            return total / mass

        attended = lax.map(attend, (queries, of_queries))
        return attended.reshape(-1, attended.shape[-1])[: len(q)].astype(q.dtype)

    heads = tuple(jnp.swapaxes(x, 0, 1) for x in (q, k, v))
    return jnp.swapaxes(lax.map(of_head, heads), 0, 1)


def _in_blocks(x: Array, block: int, fill: int = 0) -> Array:
    """Reshape [n, ...] to [blocks, block, ...], padding the last block with `fill`."""
    more = -len(x) % block
    rows = jnp.pad(x, ((0, more), *((0, 0),) * (x.ndim - 1)), constant_values=fill)
    return rows.reshape(-1, block, *x.shape[1:])


def _meet(
    state: tuple[Array, Array, Array],
    q: Float[Array, "queries dim"],
    k: Float[Array, "keys dim"],
    v: Float[Array, "keys dim"],
    same: Array,
    scale: float,
) -> tuple[Array, Array, Array]:
    """Add a block of keys to the running peak, mass and weighted sum; float32."""
    largest, mass, total = state
    scores = jnp.matmul(q, k.T, preferred_element_type=jnp.float32) * scale
    scores = jnp.where(same, scores, -jnp.inf)
    now = jnp.maximum(largest, scores.max(-1, keepdims=True))
    # Rows that have seen no key yet: -inf - -inf would be NaN, so exp takes a finite number.
    finite = jnp.where(now == -jnp.inf, 0.0, now)
    weights, kept = jnp.exp(scores - finite), jnp.exp(largest - finite)
    values = weights.astype(v.dtype) @ v
    return now, mass * kept + weights.sum(-1, keepdims=True), total * kept + values


@dataclass(frozen=True)
class ItemTiles:
    """Tile sizes: rows x keys scores that a program of one head computes at a time."""

    rows: int = 128
    keys: int = 32
    num_warps: int = 4
    num_stages: int = 2


def choose_tiles(dim: int, dtype: DTypeLike) -> ItemTiles:
    """Choose tiles. 64 keys would halve CDNA's waves; NVIDIA GPUs have room for 64 with 8 warps."""
    if dtype == jnp.float32:
        heuristic = ItemTiles(rows=64)
    else:
        heuristic = ItemTiles() if gpu.current().is_amd else ItemTiles(keys=64, num_warps=8)
    return tuned("item_attention", f"dim {dim} {jnp.dtype(dtype)}", heuristic)


def _launch(q: Array, k: Array, v: Array, items: Array, scale: float) -> Array:
    n, heads, dim = q.shape
    tiles = choose_tiles(dim, q.dtype)
    more = -n % math.lcm(tiles.rows, tiles.keys)
    arrays = [_by_heads(x, more) for x in (q, k, v)]
    spans = _spans(jnp.pad(items, (0, more), constant_values=jnp.iinfo(items.dtype).max))
    out = jax.ShapeDtypeStruct(q.shape, q.dtype)
    return launch(
        partial(_attend, tiles=tiles, scale=scale * math.log2(math.e)),
        name="item_attention",
        grid=((n + more) // tiles.rows, heads),
        in_specs=(*map(_of_head, arrays), *map(whole, spans)),
        out_specs=pl.BlockSpec((n, None, dim), lambda t, h: (0, h, 0)),
        out_shape=out,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )(*arrays, *spans)


def _by_heads(x: Float[Array, "n heads dim"], more: int) -> Float[Array, "heads rows columns"]:
    """Transpose to heads first and pad: `more` rows, and columns to whole pieces, with zeros."""
    filled = jnp.pad(x, ((0, more), (0, 0), (0, -x.shape[2] % PIECE)))
    return jnp.swapaxes(filled, 0, 1)


def _spans(items: Int[Array, " rows"]) -> tuple[Int[Array, " rows"], Int[Array, " rows"]]:
    """Return each row's span: the first row of its item, and the end of the item."""
    # Unrolled, because each step of a loop would be a launch.
    place = partial(jnp.searchsorted, items, items, method="scan_unrolled")
    return place(side="left").astype(jnp.int32), place(side="right").astype(jnp.int32)


def _of_head(array: Array) -> pl.BlockSpec:
    return pl.BlockSpec((None, *array.shape[1:]), lambda t, h: (h, 0, 0))


class _Softmax(NamedTuple):
    """Running softmax to the base 2: peak and mass [rows], sums [rows, columns] by piece."""

    peak: Array
    mass: Array
    totals: tuple[Array, ...]


def _attend(
    q: Any, k: Any, v: Any, first: Any, end: Any, out: Any, *, tiles: ItemTiles, scale: float
) -> None:
    """Kernel body: attend a tile of one head's queries to the items in the tile.

    Grid: tiles of queries x heads. Blocks: q, k and v [rows, columns] of the head whole, the spans
    whole; [rows, keys] scores at a time. Limit: matrix units, 4 * columns products for each score.
    Units: scores to the base 2, float32.
    """
    (n, dim), row = out.shape, pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)
    columns = _pieces(q.shape[1])
    own_first, own_end = load(first.at[row]), load(end.at[row])
    queries = [_at(q, row, piece) for piece in columns]

    def add_tile(index: Array, state: _Softmax) -> _Softmax:
        key = index * tiles.keys + jnp.arange(tiles.keys)
        products = [
            dot(query, _at(k, key, piece), trans_b=True)
            for query, piece in zip(queries, columns, strict=True)
        ]
        seen = (own_first[:, None] <= key[None, :]) & (key[None, :] < own_end[:, None])
        scores = jnp.where(seen, sum(products) * scale, LOWEST)
        return _add(state, scores, [_at(v, key, piece) for piece in columns])

    zeros = jnp.zeros((tiles.rows,), jnp.float32)
    totals = tuple(jnp.zeros((tiles.rows, piece.size), jnp.float32) for piece in columns)
    begin, stop = lax.div(jnp.min(own_first), tiles.keys), pl.cdiv(jnp.max(own_end), tiles.keys)
    state = lax.fori_loop(begin, stop, add_tile, _Softmax(zeros + LOWEST, zeros, totals))
    for piece, total in zip(columns, state.totals, strict=True):
        mean = (total / state.mass[:, None]).astype(out.dtype)
        mask = (row < n)[:, None] & (piece < dim)[None, :]
        store(out.at[row[:, None], piece[None, :]], mean, mask=mask)


def _add(state: _Softmax, scores: Array, values: Sequence[Array]) -> _Softmax:
    """Add a tile of keys. Contributions of tiles before a row's item vanish once it sees a key."""
    peak = jnp.maximum(state.peak, jnp.max(scores, axis=1))
    weights, kept = jnp.exp2(scores - peak[:, None]), jnp.exp2(state.peak - peak)
    totals = tuple(
        total * kept[:, None] + dot(weights.astype(block.dtype), block)
        for total, block in zip(state.totals, values, strict=True)
    )
    return _Softmax(peak, state.mass * kept + jnp.sum(weights, axis=1), totals)


def _pieces(width: int) -> list[Array]:
    """Split columns into powers of two, larger ones first: 80 is 64 and 16."""
    found, start = [], 0
    for power in reversed(range(width.bit_length())):
        if width & (size := 1 << power):
            found.append(start + jnp.arange(size))
            start += size
    return found


def _at(ref: Any, row: Array, column: Array) -> Array:
    return load(ref.at[row[:, None], column[None, :]])


ITEM_ATTENTION = Operation("item_attention", reference=_reference, pallas=_launch, xla=_on_cpu)
