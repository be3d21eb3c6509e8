"""Packed batches hold every sample whole."""

import json

import numpy as np
import pytest

from eagle3_jax.training.batches import count_batches, packed_batches
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


def numbered(count: int) -> list[Sample]:
    """Sample i holds i, a few times."""
    return [Sample([i] * (3 + i % 5), [True] * (3 + i % 5)) for i in range(count)]


def test_every_sample_comes_once_an_epoch_whatever_is_resumed() -> None:
    samples, taken = numbered(37), []
    batches = packed_batches(samples, 4, 16, seed=7, epochs=2)
    while True:
        again = packed_batches(samples, 4, 16, seed=7, epochs=2)
        again.set_state(json.loads(json.dumps(batches.get_state())))
        batches = again  # as after a kill
        if (batch := next(batches, None)) is None:
            break
        taken.append(batch)
    starts = [b.token_ids[(b.segments > 0) & (b.positions == 0)].tolist() for b in taken]
    order = [i for batch in starts for i in batch]
    assert sorted(order) == sorted([*range(37)] * 2)
    # A batch may hold the end of one epoch and the beginning of the next.
    assert len(set(order[:30])) == 30 and order[:37] != order[37:]
    straight = list(packed_batches(samples, 4, 16, seed=7, epochs=2))
    for a, b in zip(taken, straight, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
    lengths = [len(sample.token_ids) for sample in samples]
    assert count_batches(lengths, 4, 16, seed=7, epochs=2) == len(taken)
