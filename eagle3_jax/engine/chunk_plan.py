"""Part of a prompt that one prefill program runs."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from eagle3_jax.engine.images.encoder_cache import EncoderCache
from eagle3_jax.engine.images.layout import NewImage
from eagle3_jax.engine.sequence import Sequence


@dataclass(frozen=True)
class ChunkPlan:
    """The next chunk of a sequence's prompt: [start, start + length).

    `feature_rows` are the rows of image features for its tokens and the next, None without vision.
    `new_images` must be encoded first.
    """

    sequence: Sequence
    start: int
    length: int
    feature_rows: Int[np.ndarray, " length_and_next"] | None = None
    new_images: tuple[NewImage, ...] = ()

    @classmethod
    def next_of(cls, sequence: Sequence, most: int, images: EncoderCache | None) -> "ChunkPlan":
        """Return the next chunk of a prompt: `most` tokens, or as many as `images` has room for."""
        start = sequence.num_prefilled
        end = min(start + most, len(sequence.prefill_ids))
        if images:
            end = images.chunk_end(sequence.request.images, start, end)
        return cls(sequence, start, end - start)

    @property
    def last(self) -> bool:
        return self.start + self.length == len(self.sequence.prefill_ids)
