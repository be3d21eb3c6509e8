"""Pages of prompts with images are found by the same images alone.

The simulated device checks that every row that a program reads was written for the same images.
"""

from dataclasses import replace

import pytest
from driving import drive, sizes
from simulated_device import plain_answer, simulated_engine
from tiny_vision import PAD, VISION, image, with_images

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import KVEventLog, PagesStored
from eagle3_jax.engine.kv.prefix_cache import prompt_page_keys
from eagle3_jax.engine.page_tiers import TokensByTier
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.vision.item import ImageItem

STEM, TAIL = [5, 9, 2, 7, 11, 3, 8], [1, 2]
SEEN, OTHER = image(1, 8, 6), image(2, 8, 6)
"""12 tokens each: behind STEM the first page is all text, and the other four touch the image."""
BEFORE, WHOLE = 4, 20
"""Tokens of these pages."""


def asked(*parts: ImageItem | list[int]) -> Request:
    return with_images("r", parts, SamplingParams(temperature=0.7, seed=4, max_tokens=10))


def keys(*parts: ImageItem | list[int]) -> list[bytes]:
    return prompt_page_keys(EngineConfig(page_size=4), asked(*parts))


def shared(some: list[bytes], others: list[bytes]) -> int:
    return sum(one == other for one, other in zip(some, others, strict=True))


def found(engine: Engine, *parts: ImageItem | list[int]) -> TokensByTier:
    """Return where the prompt's tokens were found, and check the answer."""
    request = asked(*parts)
    answer = drive(engine, [request])["r"]
    assert answer.token_ids == plain_answer(request, engine.config)[0]
    return answer.outputs[-1].cached


def test_pages_that_touch_an_image_are_told_apart_by_it_and_those_before_are_not() -> None:
    seen = keys(STEM, SEEN, STEM)
    assert keys(STEM, SEEN, STEM) == seen
    for other in ((STEM, OTHER, STEM), (STEM, [PAD] * 12, STEM)):
        assert shared(seen, keys(*other)) == 1


def test_a_page_whose_next_token_is_an_images_is_told_apart_too() -> None:
    """Draft KV of its last position comes from that token."""
    assert shared(keys(STEM[:4], SEEN, [1]), keys(STEM[:4], OTHER, [1])) == 0


def test_where_an_image_begins_counts_for_pages_that_lie_within_it() -> None:
    """One id everywhere, twice the image: only the place tells these prompts apart."""
    assert shared(keys([PAD], SEEN, [1] * 4), keys(SEEN, [PAD], [1] * 4)) == 0


def test_every_bit_of_the_digest_counts() -> None:
    digest = bytearray(SEEN.digest)
    digest[31] ^= 1
    assert shared(keys(SEEN, [1]), keys(replace(SEEN, digest=bytes(digest)), [1])) == 0


def test_a_hit_may_end_within_an_image_or_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = simulated_engine(monkeypatch, sizes(3, num_pages=None), vision=VISION)
    for parts, tokens, encoded in (
        ((STEM, SEEN, TAIL), 0, 1),
        ((STEM, SEEN, TAIL), WHOLE, 1),
        ((STEM, [PAD] * 12, TAIL), BEFORE, 1),
        ((STEM, OTHER, TAIL), BEFORE, 2),
        # A page ends at position 16, within the image; the page after it has other text in it.
        ((STEM, SEEN, [4, 4, 4]), 16, 2),
    ):
        assert found(engine, *parts) == TokensByTier(tokens)
        assert engine.stats().images_encoded == encoded


def test_events_name_the_images_that_a_pages_key_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    log = KVEventLog()
    engine = simulated_engine(monkeypatch, sizes(3, num_pages=None), vision=VISION, kv_events=log)
    found(engine, STEM, SEEN, TAIL)
    told = [
        page for event in log.drain() if isinstance(event, PagesStored) for page in event.images
    ]
    assert told[:5] == [(), *(((SEEN.digest, 7 - 4 * page),) for page in range(1, 5))]
