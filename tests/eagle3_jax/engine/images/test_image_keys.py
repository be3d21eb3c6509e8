"""Pages with images are found by whoever sends the same image there, and by nobody else."""

from dataclasses import replace
from typing import Any

import pytest
from driving import drive, sizes
from tiny_vision import PAD, image, seeing_draft, seeing_target, tiny_vision, with_images

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import KVEventLog, PagesStored
from eagle3_jax.engine.kv.prefix_cache import prompt_page_keys
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.vision.item import ImageItem

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)
CONFIG = EngineConfig(page_size=4)
STEM = [5, 9, 2, 7, 11, 3, 8]
SEEN, OTHER = image(1, 8, 6), image(2, 8, 6)
"""12 tokens each."""


def keys(*parts: ImageItem | list[int], **fields: Any) -> list[bytes]:
    return prompt_page_keys(CONFIG, with_images("r", parts, GREEDY, **fields))


def shared(some: list[bytes], others: list[bytes]) -> int:
    return sum(one == other for one, other in zip(some, others, strict=True))


def test_pages_that_touch_an_image_are_told_apart_by_it_and_those_before_are_not() -> None:
    seen = keys(STEM, SEEN, STEM)
    assert keys(STEM, SEEN, STEM) == seen
    assert shared(seen, keys(STEM, OTHER, STEM)) == 1
    assert shared(seen, keys(STEM, [PAD] * 12, STEM)) == 1
    assert shared(seen, keys([*STEM, *[PAD] * 12, *STEM])) == 1


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


@pytest.fixture(scope="module")
def seeing() -> Engine:
    parts = seeing_target(), seeing_draft(), sizes(3, num_pages=None)
    return Engine(*parts, eos_token_ids=(), vision=tiny_vision())


def told(engine: Engine, request: Request) -> tuple[Any, int, int]:
    """The answer's logprobs, prompt tokens found, and images encoded for it."""
    before = engine.stats()
    answer = drive(engine, [request])[request.request_id]
    after = engine.stats()
    logprobs = [entry for output in answer.outputs for entry in output.logprobs]
    chosen = zip(answer.token_ids, logprobs, strict=True)
    said = [row[token].logprob for token, row in chosen]
    found = after.prefix_cache_hits - before.prefix_cache_hits
    return said, found, after.images_encoded - before.images_encoded


def test_a_hit_may_end_within_an_image_or_behind_it(seeing: Engine) -> None:
    def same(said: list[float]) -> Any:
        return pytest.approx(said, abs=1e-4)

    alone = told(seeing, with_images("a", [STEM, SEEN, [1, 2]], GREEDY, cache_salt="a"))[0]
    first = told(seeing, with_images("b", [STEM, SEEN, [1, 2]], GREEDY))
    assert first == (same(alone), 0, 0), "the devices kept the image's features"
    again = told(seeing, with_images("c", [STEM, SEEN, [1, 2]], GREEDY))
    assert again == (same(alone), 20, 0)
    text = [*STEM, *[PAD] * 12, 1, 2]
    assert told(seeing, Request("d", text, GREEDY))[1] == 4
    other = told(seeing, with_images("e", [STEM, OTHER, [1, 2]], GREEDY))
    assert other[1:] == (4, 1)
    assert other[0] != same(alone)
    # Page 4 ends at position 16, within the image, and the page behind has other text in it.
    within = told(seeing, with_images("f", [STEM, SEEN, [4, 4, 4]], GREEDY))
    fresh = told(seeing, with_images("g", [STEM, SEEN, [4, 4, 4]], GREEDY, cache_salt="g"))
    assert within == (same(fresh[0]), 16, 0)


def test_chunks_may_be_cut_anywhere_in_an_image(seeing: Engine) -> None:
    """Chunks of 8 tokens: of prompts that begin with 1 to 8, each position of an image begins a
    chunk. Plain decoding behind a prefill in one chunk says the same."""
    whole = Engine(
        seeing_target(), None, sizes(0, prefill_chunk=64), eos_token_ids=(), vision=tiny_vision()
    )
    for lead in range(1, 9):
        parts = [[4] * lead, SEEN, OTHER, [1, 2]]
        request = with_images("a", parts, GREEDY, cache_salt=f"{lead}")
        expected = pytest.approx(told(whole, request)[0], abs=1e-4)
        assert told(seeing, request)[0] == expected


def test_events_name_the_images_that_a_pages_key_covers() -> None:
    log = KVEventLog()
    parts = seeing_target(), None, sizes(0, num_pages=None)
    engine = Engine(*parts, eos_token_ids=(), vision=tiny_vision(), kv_events=log)
    drive(engine, [with_images("a", [STEM, SEEN, [1, 2]], replace(GREEDY, max_tokens=1))])
    told = [page for event in log.take() if isinstance(event, PagesStored) for page in event.images]
    assert told == [(), *(((SEEN.digest, 7 - 4 * page),) for page in range(1, 5))]
