"""Packed batches hold every sample whole, and know what the assistant said."""

import numpy as np
import pytest

from eagle3_jax.training.packing import Sample, assistant_mask, pack


def test_every_packed_sample_can_be_read_back() -> None:
    samples = [Sample(list(range(10 * i, 10 * i + 5 + i)), [True] * (5 + i)) for i in range(4)]
    batch = pack(iter(samples), rows=2, length=16)
    found = []
    for tokens, segments, positions in zip(
        batch.token_ids, batch.segments, batch.positions, strict=True
    ):
        for number in range(1, segments.max() + 1):
            mine = segments == number
            assert positions[mine].tolist() == list(range(mine.sum()))
            found.append(tokens[mine].tolist())
    assert sorted(found) == [sample.token_ids for sample in samples]


def test_packing_stops_at_the_first_sample_without_room() -> None:
    samples = iter([Sample([1] * 6, [True] * 6)] * 10)
    batch = pack(samples, rows=2, length=8)
    assert np.asarray(batch.segments).max() == 1
    assert len(list(samples)) == 10 - 3


def test_a_sample_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="9 tokens, rows hold 8"):
        pack(iter([Sample([0] * 9, [True] * 9)]), rows=1, length=8)


def test_only_answers_and_their_stop_are_wanted() -> None:
    start, middle, end, think = 90, 91, 92, 93
    user = [80, 7, middle, 1, 2, end]
    token_ids = [*user, start, 7, middle, think, 3, 4, end, *user, start, 7, middle, 5, end]
    mask = assistant_mask(token_ids, start, middle, end, (think,))
    assert [t for t, wanted in zip(token_ids, mask, strict=True) if wanted] == [3, 4, end, 5, end]
