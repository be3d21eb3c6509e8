"""Host bookkeeping of the image features on the devices and their rows."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from eagle3_jax.engine.images.layout import ImageLayout, NewImage
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.speculative.state import NO_ROW
from eagle3_jax.vision.item import ImageItem, PlacedImage


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
