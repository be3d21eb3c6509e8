"""Checks of a prompt's images, and host bookkeeping of their feature rows on the devices."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Int

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.images.layout import ImageLayout, NewImage
from eagle3_jax.engine.request import Request
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.speculative.state import NO_ROW
from eagle3_jax.vision.item import ImageItem, PlacedImage
from eagle3_jax.vision.packing import check_item


class EncoderCache:
    """Feature rows by image digest, with LRU eviction.

    Programs run in dispatch order, so rows may be reused once the chunk that reads them is
    dispatched. `num_queries` and `num_hits` count images in prompts and those with cached features.
    `num_encoded` counts encodings, including repeated ones for later chunks.
    """

    def __init__(self, layout: ImageLayout):
        self.layout = layout
        self.num_queries = self.num_hits = self.num_encoded = 0
        self._rows: OrderedDict[bytes, Int[np.ndarray, " tokens"]] = OrderedDict()
        self._free = list(range(layout.capacity))[::-1]

    @property
    def num_tokens(self) -> int:
        """Number of tokens with cached features."""
        return self.layout.capacity - len(self._free)

    def chunk_end(self, images: Sequence[PlacedImage], start: int, end: int) -> int:
        """Return the end, up to `end`, of a chunk whose images' features all fit.

        The result depends on the prompt alone.
        """
        fitting = self._fitting(images, start, end)
        beyond = (image.start for image in images if image.end > start and image not in fitting)
        return min(end, next(beyond, end))

    def assign_rows(self, sequence: EngineSequence, start: int, end: int) -> list[NewImage]:
        """Assign rows to a chunk's new images and return them for encoding.

        Features of the token after the chunk are included if they fit.
        """
        images = sequence.request.images
        needed = self._fitting(images, start, end + 1)
        items = {image.item.digest: image.item for image in needed}
        for digest in items:
            if digest in self._rows:
                self._rows.move_to_end(digest)
        new = [self._place(item) for digest, item in items.items() if digest not in self._rows]
        first = [image for image in needed if image.end > sequence.images_until]
        sequence.images_until = max([sequence.images_until, *(image.end for image in needed)])
        self.num_queries += len(first)
        self.num_hits += len(first) - len(new)
        self.num_encoded += len(new)
        return new

    def rows(
        self, images: Sequence[PlacedImage], start: int, size: int
    ) -> Int[np.ndarray, " size"]:
        """Return the feature row of each of `size` tokens from `start`; NO_ROW without features."""
        found = np.full(size, NO_ROW, np.int32)
        for image in images:
            low, high = max(image.start, start), min(image.end, start + size)
            if low < high and image.item.digest in self._rows:
                own = self._rows[image.item.digest]
                found[low - start : high - start] = own[low - image.start : high - image.start]
        return found

    def _fitting(self, images: Sequence[PlacedImage], start: int, end: int) -> list[PlacedImage]:
        """Return the first images that touch these positions, as many as fit."""
        fitting: list[PlacedImage] = []
        tokens: dict[bytes, int] = {}
        for image in images:
            if image.start < end and image.end > start:
                tokens[image.item.digest] = image.item.num_tokens
                if sum(tokens.values()) > self.layout.capacity:
                    break
                fitting.append(image)
        return fitting

    def _place(self, item: ImageItem) -> NewImage:
        while len(self._free) < item.num_tokens:
            _, oldest = self._rows.popitem(last=False)
            self._free += oldest.tolist()
        taken = [self._free.pop() for _ in range(item.num_tokens)]
        self._rows[item.digest] = rows = np.array(taken, np.int32)
        return NewImage(item, rows)


DIGEST_BYTES = 32


def check_images(
    request: Request, cache: EncoderCache | None, exact_chunk: int | None = None
) -> None:
    """Raise ValueError for images that cannot run or whose positions are wrong.

    `exact_chunk` is the chunk size in exact mode, where images cannot shorten chunks. A placeholder
    outside of images is an ordinary token.
    """
    if not request.images:
        return
    if cache is None:
        raise ValueError("this engine has no vision model: send requests without images")
    vision, capacity = cache.layout.vision, cache.layout.capacity
    for image in request.images:
        _check_item(image.item, vision, capacity)
        _check_place(image, request.prompt_ids, vision.media_placeholder_token_id)
    for before, after in pairwise(request.images):
        if after.start < before.end:
            raise ValueError(
                f"images must be in order and apart: one ends at {before.end}, the next begins at "
                f"{after.start}"
            )
    if exact_chunk is not None:
        _check_grid(request, cache, exact_chunk)


def _check_grid(request: Request, cache: EncoderCache, chunk: int) -> None:
    for start in range(0, len(request.prompt_ids), chunk):
        if cache.chunk_end(request.images, start, start + chunk) < start + chunk:
            raise ValueError(
                f"exact mode runs {chunk} prompt tokens from {start} as a chunk, whose images have "
                f"more tokens than mm_encoder_cache_tokens, {cache.layout.capacity}: send smaller "
                "images, or fewer"
            )


def _check_item(item: ImageItem, vision: VisionConfig, most_tokens: int) -> None:
    check_item(item, vision)
    frames, rows, columns = item.grid_thw
    if frames != 1:
        raise ValueError(f"an image must have one frame, got {frames}; videos are not supported")
    if item.num_tokens != rows * columns // vision.token_patches:
        raise ValueError(
            f"an image of {rows} x {columns} patches has {rows * columns // vision.token_patches} "
            f"tokens, got num_tokens={item.num_tokens}"
        )
    if item.num_tokens > most_tokens:
        raise ValueError(
            f"an image may have {most_tokens} tokens (mm_encoder_cache_tokens), got "
            f"{item.num_tokens}: send a smaller one"
        )
    if len(item.digest) != DIGEST_BYTES:
        raise ValueError(
            f"an image's digest must have {DIGEST_BYTES} bytes, because its KV is found by it; got "
            f"{len(item.digest)}"
        )


def _check_place(image: PlacedImage, prompt_ids: list[int], placeholder: int) -> None:
    place = prompt_ids[image.start : image.end] if image.start >= 0 else []
    if place != [placeholder] * image.item.num_tokens:
        raise ValueError(
            f"an image's {image.item.num_tokens} positions from {image.start} must hold the "
            f"placeholder {placeholder}"
        )
