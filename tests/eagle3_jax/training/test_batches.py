"""Each sample comes whole, once an epoch, in another order each time, also of a resumed run."""

import json
from collections import Counter

import numpy as np
import pytest

from eagle3_jax.training.batches import count_batches, packed_batches
from eagle3_jax.training.packing import PackedBatch, Sample, padded

ROWS, LENGTH, EPOCHS = 2, 24, 3
SAMPLES = [Sample([number] * (3 + number % 7), [True] * (3 + number % 7)) for number in range(50)]


def numbers(batch: PackedBatch) -> list[int]:
    """The samples of a batch; each is its number, so many times."""
    found = []
    for row, of, at in zip(batch.token_ids, batch.segments, batch.positions, strict=True):
        for segment in range(1, of.max() + 1):
            ids = row[of == segment]
            assert at[of == segment].tolist() == [*range(len(ids))]
            assert len(set(ids.tolist())) == 1 and len(ids) == 3 + ids[0] % 7, "whole"
            found.append(int(ids[0]))
    return found


@pytest.mark.parametrize("every", [None, 1, 4])
def test_every_sample_comes_once_an_epoch(every: int | None) -> None:
    """every: batches after which the place goes through JSON into a new iterator."""

    def start():
        return packed_batches(SAMPLES, ROWS, LENGTH, seed=5, epochs=EPOCHS)

    batches, seen, read = start(), [], 0
    while (batch := next(batches, None)) is not None:
        seen, read = [*seen, *numbers(batch)], read + 1
        if every and read % every == 0:
            place = json.loads(json.dumps(batches.get_state()))
            batches = start()
            batches.set_state(place)
    lengths = [len(sample.token_ids) for sample in SAMPLES]
    assert read == count_batches(lengths, ROWS, LENGTH, seed=5, epochs=EPOCHS)
    assert Counter(seen) == Counter(dict.fromkeys(range(50), EPOCHS))
    # Packing may carry a few samples over an epoch's end, not more than one batch holds.
    ends = [Counter(seen[50 * epoch : 50 * (epoch + 1)]) for epoch in range(EPOCHS)]
    assert all(max(found.values()) <= 2 and len(found) > 30 for found in ends)
    assert seen[:50] != seen[50:100] and seen[:50] != sorted(seen[:50])
    assert seen == [n for batch in start() for n in numbers(batch)]


def test_a_sample_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="8"):
        next(packed_batches([Sample([0] * 9, [True] * 9)], rows=1, length=8))
    with pytest.raises(ValueError, match="9 tokens, a row holds 8"):
        padded(Sample([0] * 9, [True] * 9), 8)


def test_a_row_of_its_own_is_what_packing_one_sample_makes() -> None:
    sample = Sample([7, 8, 9], [False, True, True])
    for own, packed in zip(padded(sample, 5), next(packed_batches([sample], 1, 5)), strict=True):
        np.testing.assert_array_equal(own, packed)
