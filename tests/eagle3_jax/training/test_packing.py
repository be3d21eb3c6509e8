"""Packed batches hold every sample whole."""

import numpy as np
import pytest

from eagle3_jax.training.batches import packed_batches
from eagle3_jax.training.packing import Sample, padded


def test_every_packed_sample_can_be_read_back() -> None:
    samples = [Sample(list(range(10 * i, 10 * i + 5 + i)), [True] * (5 + i)) for i in range(4)]
    batch = next(packed_batches(samples, rows=2, length=16))
    found = []
    for tokens, segments, positions in zip(
        batch.token_ids, batch.segments, batch.positions, strict=True
    ):
        for number in range(1, segments.max() + 1):
            mine = segments == number
            assert positions[mine].tolist() == list(range(mine.sum()))
            found.append(tokens[mine].tolist())
    assert sorted(found) == [sample.token_ids for sample in samples]


def test_a_sample_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="8"):
        next(packed_batches([Sample([0] * 9, [True] * 9)], rows=1, length=8))
    with pytest.raises(ValueError, match="9 tokens, a row holds 8"):
        padded(Sample([0] * 9, [True] * 9), 8)


def test_a_row_of_its_own_is_what_packing_one_sample_makes() -> None:
    sample = Sample([7, 8, 9], [False, True, True])
    for own, packed in zip(padded(sample, 5), next(packed_batches([sample], 1, 5)), strict=True):
        np.testing.assert_array_equal(own, packed)
