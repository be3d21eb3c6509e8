"""The cache of image features evicts in order of use; images stand only where they may."""

import pytest
from tiny_vision import PAD, VISION, image, with_images

from eagle3_jax.engine import Request
from eagle3_jax.engine.images.encoder_cache import EncoderCache, check_images
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.state import NO_ROW
from eagle3_jax.vision.item import ImageItem, PlacedImage

A, B, C = (image(seed) for seed in range(3))
"""6 tokens each."""


def prompt(*parts: ImageItem | list[int]) -> Sequence:
    request = with_images("r", [*parts, [1]], SamplingParams(max_tokens=1))
    return Sequence.of(request, (), 64, None)


def cache(images: int) -> EncoderCache:
    return EncoderCache(ImageLayout(VISION, capacity=6 * images))


def brought(kept: EncoderCache, sequence: Sequence, start: int, end: int) -> list[ImageItem]:
    """The images to encode before this chunk, all of whose features are there then."""
    new = kept.assign_rows(sequence, start, end)
    assert (kept.rows(sequence.request.images, start, end - start) != NO_ROW).all()
    return [one.item for one in new]


def test_features_that_a_chunk_needs_stay_when_it_brings_another_image() -> None:
    kept = cache(2)
    assert brought(kept, prompt(A, B), 0, 12) == [A, B]
    assert brought(kept, prompt(A, C), 0, 12) == [C]


def test_each_token_of_an_image_has_its_own_row_however_a_chunk_is_cut() -> None:
    kept, sequence = cache(2), prompt([1, 2], A)
    (new,) = kept.assign_rows(sequence, 0, 8)
    whole = [NO_ROW, NO_ROW, *new.rows]
    for start in range(8):
        assert kept.rows(sequence.request.images, start, 9 - start).tolist() == [
            *whole[start:],
            NO_ROW,
        ]


def test_features_used_longest_ago_go_first() -> None:
    kept = cache(2)
    for item in (A, B, A, C):
        brought(kept, prompt(item), 0, 6)
    assert brought(kept, prompt(A), 0, 6) == []
    assert brought(kept, prompt(B), 0, 6) == [B]


def test_a_chunk_ends_before_an_image_whose_features_have_no_room() -> None:
    kept, images = cache(2), prompt(A, [1, 2], B, C).request.images
    assert kept.chunk_end(images, 0, 21) == 14
    assert kept.chunk_end(images, 5, 21) == 14
    assert kept.chunk_end(images, 6, 21) == 21


def test_images_stand_one_behind_the_other() -> None:
    for second, message in ((6, None), (5, "apart"), (0, "apart")):
        images = (PlacedImage(A, 0), PlacedImage(B, second))
        request = Request("r", [PAD] * 12, SamplingParams(), images=images)
        if message is None:
            check_images(request, cache(2))
        else:
            with pytest.raises(ValueError, match=message):
                check_images(request, cache(2))
