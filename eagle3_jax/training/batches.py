"""Samples as batches of packed rows: shuffled, once an epoch, from a place that can be saved."""

from functools import partial
from typing import Protocol

import grain
import numpy as np
from grain.experimental import FirstFitPackIterDataset

from eagle3_jax.training.loop import Batches
from eagle3_jax.training.packing import PackedBatch, Sample


class Samples(Protocol):
    """As many as it is long, each found by its number."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Sample: ...


def packed_batches(
    samples: Samples, rows: int, length: int, *, seed: int | None = None, epochs: int = 1
) -> Batches:
    """Batches of `rows` rows; each sample goes to the first row with room, whole.

    Every sample comes once in each epoch, in another order each time; in the samples' own without a
    seed. A batch ends with the first sample that has no room in it; the last one may have empty
    rows. Longer samples than a row are an error.
    """
    ordered = grain.MapDataset.source(samples)  # type: ignore[arg-type]
    if seed is not None:
        ordered = ordered.seed(seed % 2**32).shuffle()
    read = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    stream = ordered.repeat(epochs).map(_arrays).to_iter_dataset(read)
    lengths = {"token_ids": length, "wanted": length}
    packed = FirstFitPackIterDataset(
        stream, length_struct=lengths, num_packing_bins=rows, shuffle_bins=False
    )
    return iter(packed.batch(rows).map(partial(_batch, rows)))  # type: ignore[return-value]


def count_batches(samples: Samples, rows: int, length: int, *, seed: int, epochs: int) -> int:
    """How many batches there will be; reads every sample."""
    return sum(1 for _ in packed_batches(samples, rows, length, seed=seed, epochs=epochs))


def _arrays(sample: Sample) -> dict[str, np.ndarray]:
    return {
        "token_ids": np.asarray(sample.token_ids, np.int32),
        "wanted": np.asarray(sample.wanted, np.float32),
    }


def _batch(rows: int, element: dict[str, np.ndarray]) -> PackedBatch:
    """What grain packed, as a batch of so many rows."""
    missing = rows - len(element["token_ids"])
    tokens, segments, positions, wanted = (
        np.pad(element[name], ((0, missing), (0, 0)))
        for name in ("token_ids", "token_ids_segment_ids", "token_ids_positions", "wanted")
    )
    return PackedBatch(tokens, segments, positions, wanted)
