"""Batches of packed rows from samples: shuffled per epoch, with a position that can be saved."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import grain
import numpy as np
from grain.experimental import FirstFitPackIterDataset
from jax.typing import DTypeLike

from eagle3_jax.models.vision import VisionModel
from eagle3_jax.training.loop import Batches
from eagle3_jax.training.packing import Features, PackedBatch, Sample
from eagle3_jax.vision.align import placeholders
from eagle3_jax.vision.encode import encode_images
from eagle3_jax.vision.item import ImageItem


class Samples(Protocol):
    """A sequence of samples with a length and access by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...


@dataclass(frozen=True)
class ImageEncoder:
    """A target's vision model, which adds rows of `dtype` to batches at `placeholder` ids."""

    vision: VisionModel
    placeholder: int
    dtype: DTypeLike

    def __call__(self, batch: PackedBatch, items: Sequence[ImageItem]) -> PackedBatch:
        """Add image feature rows to a host batch, if it has images; `items` are in row order.

        Each item is encoded alone, so its bits do not depend on its neighbours. Raises ValueError
        if the counts of placeholders and image tokens differ.
        """
        if not items:
            return batch
        features = [np.asarray(encode_images(self.vision, [item])[0]) for item in items]
        token_ids = np.asarray(batch.token_ids)
        # On the host, because all parts of an accumulated batch may be too much for one device.
        rows = np.zeros((*token_ids.shape, features[0].shape[-1]), self.dtype)
        rows[placeholders(token_ids, features, self.placeholder)] = np.concatenate(features)
        return batch._replace(image_rows=rows)


def packed_batches(
    samples: Samples,
    rows: int,
    length: int,
    *,
    seed: int | None = None,
    epochs: int = 1,
    encode: ImageEncoder | None = None,
) -> Batches:
    """Yield batches of `rows` rows; each sample goes, whole, to the first row with room.

    Every sample comes once per epoch, in a new order each time, or in the samples' own order
    without a seed. A batch ends at the first sample that does not fit; the last batch may have
    empty rows. Samples longer than a row are an error. Either all samples have features or none.
    `encode` makes the feature rows of images.
    """
    ordered = grain.MapDataset.source(_Numbered(samples))  # type: ignore[arg-type]
    if seed is not None:
        ordered = ordered.seed(seed % 2**32).shuffle()
    read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    stream = ordered.repeat(epochs).to_iter_dataset(read)
    lengths = dict.fromkeys(_arrays(0, samples[0]), length)
    packed = FirstFitPackIterDataset(
        stream, length_struct=lengths, num_packing_bins=rows, shuffle_bins=False
    )
    batch = partial(_batch, rows, samples, encode)
    return iter(packed.batch(rows).map(batch))  # type: ignore[return-value]


def count_batches(
    lengths: Sequence[int] | np.ndarray, rows: int, length: int, *, seed: int, epochs: int
) -> int:
    """Return the number of batches that samples of these lengths make."""
    blank = _Blank(lengths)
    return sum(1 for _ in packed_batches(blank, rows, length, seed=seed, epochs=epochs))


@dataclass(frozen=True)
class _Blank:
    """Samples with a length and no content."""

    lengths: Sequence[int] | np.ndarray

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Sample:
        size = int(self.lengths[index])
        return Sample([0] * size, [False] * size)


@dataclass(frozen=True)
class _Numbered:
    """Samples as arrays that include their index."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return _arrays(index, self.samples[index])


def _arrays(number: int, sample: Sample) -> dict[str, np.ndarray]:
    shown = {} if sample.features is None else sample.features._asdict()
    return {
        "token_ids": np.asarray(sample.token_ids, np.int32),
        "wanted": np.asarray(sample.wanted, np.float32),
        "number": np.full(len(sample.token_ids), number),
        **shown,
    }


def _batch(
    rows: int, samples: Samples, encode: ImageEncoder | None, element: dict[str, np.ndarray]
) -> PackedBatch:
    """Convert one element packed by grain to a batch with `rows` rows."""
    missing = rows - len(element["token_ids"])

    def whole(name: str) -> np.ndarray:
        array = element[name]
        return np.pad(array, ((0, missing), *((0, 0),) * (array.ndim - 1)))

    names = "token_ids", "token_ids_segment_ids", "token_ids_positions", "wanted"
    shown = Features(whole("aux"), whole("hidden")) if "aux" in element else None
    batch = PackedBatch(*map(whole, names), features=shown)
    if encode is None or shown is not None:
        return batch
    row, column = np.nonzero(batch.token_ids == encode.placeholder)
    segments, numbers = (x[row, column].tolist() for x in (batch.segments, whole("number")))
    # A sample may come twice: at the end of an epoch and at the beginning of the next.
    seen = dict.fromkeys(zip(row.tolist(), segments, numbers, strict=True))
    return encode(batch, [item for *_, number in seen for item in samples[number].images])
