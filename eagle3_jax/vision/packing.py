"""Items of any grids in arrays of few sizes."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.layers.patch_positions import Places
from eagle3_jax.vision.item import ImageItem

SMALLEST, STEP = 64, 4096
"""Sizes of packed arrays: powers of two up to STEP patches, then its multiples; each filled up to
whole tokens."""


class Packed(NamedTuple):
    """Items one behind the other, those of no frames behind them; see `VisionModel.__call__`."""

    patches: UInt8[Array, "n 3 p p"]
    places: Places
    frame_rows: Int[Array, "tokens frames"] | None


def bucket_of(patches: int, token_patches: int) -> int:
    """The size of the array that so many patches, of whole tokens, are packed into."""
    # What whole tokens fill a size up with asks for no larger one.
    least = max(1, patches - token_patches + 1)
    if least > STEP:
        size = -(-least // STEP) * STEP
    else:
        size = max(SMALLEST, 1 << (least - 1).bit_length())
    return _whole(size, token_patches)


def buckets_up_to(most: int, token_patches: int) -> tuple[int, ...]:
    """All sizes, ascending, that arrays of so many patches and fewer have."""
    small = [SMALLEST << i for i in range((STEP // SMALLEST).bit_length())]
    large = range(2 * STEP, most + 1, STEP)
    sizes = dict.fromkeys(_whole(size, token_patches) for size in (*small, *large))
    return tuple(size for size in sizes if size <= most)


def largest_bucket(config: VisionConfig, most_tokens: int | None = None) -> int:
    """The size of the array that the largest image lies in; most_tokens: a limit besides."""
    tokens = min(config.most_image_tokens, most_tokens or config.most_image_tokens)
    return bucket_of(tokens * config.token_patches, config.token_patches)


def _whole(patches: int, token_patches: int) -> int:
    return -(-patches // token_patches) * token_patches


def batches(items: Sequence[ImageItem], most: int) -> Iterator[list[ImageItem]]:
    """Neighbours that together have at most so many patches; a larger item goes alone."""
    batch: list[ImageItem] = []
    for item in items:
        if batch and sum(len(other.patches) for other in [*batch, item]) > most:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def pack(items: Sequence[ImageItem], config: VisionConfig) -> Packed:
    """Raises ValueError for items that are not of this model."""
    for item in items:
        check_item(item, config)
    size = bucket_of(sum(len(item.patches) for item in items), config.token_patches)
    packed = pack_images(items, size, config)._replace(frame_rows=_frame_rows(items, size, config))
    return jax.tree.map(jnp.asarray, packed)


def pack_images(items: Sequence[ImageItem], size: int, config: VisionConfig) -> Packed:
    """Items of this model, or none, in arrays of `size` patches, NumPy's; without frame_rows, which
    images need not."""
    width, side = config.merge_size, config.patch_size
    # NumPy stands in for device arrays until they are sent.
    patches: Any = np.zeros((size, 3, side, side), np.uint8)
    # Padding is an item of its own, of one patch's grid.
    columns: list[Any] = [np.full(size, len(items), np.int32), *np.zeros((3, size), np.int32)]
    columns += list(np.ones((3, size), np.int32))
    start = 0
    for number, item in enumerate(items):
        order = _token_order(item.grid_thw, width)
        own = slice(start, start := start + len(order))
        patches[own] = item.patches[order]
        where = np.unravel_index(order, item.grid_thw)
        for column, values in zip(columns, (number, *where, *item.grid_thw), strict=True):
            column[own] = values
    return Packed(patches, Places(*columns), None)


def check_item(item: ImageItem, config: VisionConfig) -> None:
    """Raises ValueError for one that is not of this model."""
    t, h, w = item.grid_thw
    shape = (t * h * w, 3, config.patch_size, config.patch_size)
    if item.patches.shape != shape or h % config.merge_size or w % config.merge_size:
        raise ValueError(
            f"an item's patches must be {shape} for its grid {item.grid_thw}, rows and columns "
            f"multiples of {config.merge_size}; got {item.patches.shape}"
        )
    if t > config.pos_emb_time:
        raise ValueError(f"an item may have {config.pos_emb_time} frames, got {t}")
    if max(h, w) > config.most_side:
        raise ValueError(f"an item may have {config.most_side} patches on a side, got {h} x {w}")


def _token_order(grid: tuple[int, int, int], merge: int) -> np.ndarray:
    """Numbers of an item's patches, those of a token in a frame together."""
    t, h, w = grid
    cells = np.arange(t * h * w).reshape(t, h // merge, merge, w // merge, merge)
    return cells.transpose(0, 1, 3, 2, 4).reshape(-1)


def _frame_rows(items: Sequence[ImageItem], size: int, config: VisionConfig) -> Any:
    if all(item.grid_thw[0] == 1 for item in items):
        return None
    rows = np.full((size // config.token_patches, config.pos_emb_time), -1, np.int32)
    group = token = 0
    for item in items:
        t, tokens = item.grid_thw[0], len(item.patches) // item.grid_thw[0] // config.token_patches
        groups = np.arange(t * tokens).reshape(t, tokens).T
        rows[token : token + tokens, :t] = group + groups
        group, token = group + t * tokens, token + tokens
    return rows
