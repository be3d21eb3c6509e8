"""Packing of items with any grids into arrays of few sizes."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt8

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.vision.item import ImageItem

SMALLEST, STEP = 64, 4096
"""Packed array sizes are powers of two up to STEP patches, then multiples of STEP, each rounded up
to whole tokens."""


class Packed(NamedTuple):
    """Items in sequence, padded at the end; see `VisionModel.__call__`."""

    patches: UInt8[Array, "n 3 p p"]
    places: PatchPositions
    frame_rows: Int[Array, "tokens frames"] | None


def bucket_of(patches: int, token_patches: int) -> int:
    """Return the array size for this many patches, which make whole tokens."""
    # Rounding up to whole tokens must not select the next larger size.
    least = max(1, patches - token_patches + 1)
    if least > STEP:
        size = -(-least // STEP) * STEP
    else:
        size = max(SMALLEST, 1 << (least - 1).bit_length())
    return _whole(size, token_patches)


def buckets_up_to(most: int, token_patches: int) -> tuple[int, ...]:
    """Return all array sizes up to `most` patches, ascending."""
    small = [SMALLEST << i for i in range((STEP // SMALLEST).bit_length())]
    large = range(2 * STEP, most + 1, STEP)
    sizes = dict.fromkeys(_whole(size, token_patches) for size in (*small, *large))
    return tuple(size for size in sizes if size <= most)


def largest_bucket(config: VisionConfig, most_tokens: int | None = None) -> int:
    """Return the array size of the largest image, optionally limited to `most_tokens`."""
    tokens = min(config.most_image_tokens, most_tokens or config.most_image_tokens)
    return bucket_of(tokens * config.token_patches, config.token_patches)


def _whole(patches: int, token_patches: int) -> int:
    return -(-patches // token_patches) * token_patches


def batches(items: Sequence[ImageItem], most: int) -> Iterator[list[ImageItem]]:
    """Group adjacent items with at most `most` patches together; a larger item is alone."""
    batch: list[ImageItem] = []
    for item in items:
        if batch and sum(len(other.patches) for other in [*batch, item]) > most:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def pack(items: Sequence[ImageItem], config: VisionConfig) -> Packed:
    """Pack items into device arrays; raise ValueError for items that do not fit the model."""
    for item in items:
        check_item(item, config)
    size = bucket_of(sum(len(item.patches) for item in items), config.token_patches)
    packed = pack_images(items, size, config)._replace(frame_rows=_frame_rows(items, size, config))
    return jax.tree.map(jnp.asarray, packed)


def pack_images(items: Sequence[ImageItem], size: int, config: VisionConfig) -> Packed:
    """Pack any number of items into NumPy arrays of `size` patches, without `frame_rows`."""
    width, side = config.merge_size, config.patch_size
    # NumPy arrays stand in for device arrays until they are sent.
    patches: Any = np.zeros((size, 3, side, side), np.uint8)
    # Padding is an item of its own, with the grid of one patch.
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
    return Packed(patches, PatchPositions(*columns), None)


def check_item(item: ImageItem, config: VisionConfig) -> None:
    """Raise ValueError for an item that does not fit the model."""
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
    """Return the order of an item's patches that makes a token's patches in a frame adjacent."""
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
