"""Images of samples as rows that take the place of embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jax.typing import DTypeLike

from eagle3_jax.models.vision import VisionModel
from eagle3_jax.training.packing import PackedBatch
from eagle3_jax.vision.align import aligned
from eagle3_jax.vision.encode import encode_images
from eagle3_jax.vision.item import ImageItem


@dataclass(frozen=True)
class ImageEncoder:
    """A target's vision. placeholder: the id whose positions images have; dtype: of the rows."""

    vision: VisionModel
    placeholder: int
    dtype: DTypeLike

    def __call__(self, batch: PackedBatch, items: Sequence[ImageItem]) -> PackedBatch:
        """A batch, still on the host, with its images' rows; as it is where it has none. items: in
        the order of its rows. Each is encoded alone, so that its bits are not its neighbours'.

        Raises ValueError where placeholders and tokens of images are not equally many.
        """
        if not items:
            return batch
        features = [rows for item in items for rows in encode_images(self.vision, [item])]
        hidden = features[0].shape[-1]
        rows = aligned(np.asarray(batch.token_ids), features, self.placeholder, hidden)
        return batch._replace(image_rows=np.asarray(rows.astype(self.dtype)))
