"""Prompts with images: answers are those of a whole pass, and pages are found by their images."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from driving import Answer, drive, sizes
from sweeps import sweep
from tiny_vision import (
    PAD,
    VISION,
    drawn,
    image,
    seeing_draft,
    seeing_target,
    tiny_vision,
    with_images,
)

from eagle3_jax import ImageItem, encode_images, forward
from eagle3_jax.config.vision import PixelConfig
from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import KVEventLog, PagesStored
from eagle3_jax.engine.kv.prefix_cache import prompt_page_keys
from eagle3_jax.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SHORT, LONG = image(1), image(2, 8, 6)
OTHER = image(3)
"""As large as SHORT."""


def engine(k: int, **changes: Any) -> Engine:
    draft = seeing_draft() if k else None
    return Engine(
        seeing_target(), draft, sizes(k, **changes), eos_token_ids=(), vision=tiny_vision()
    )


def requests(sampling: SamplingParams = GREEDY) -> list[Request]:
    stem = [5, 9, 2, 7, 11]
    parts = {
        "one": [stem, SHORT, [3, 4]],
        "other": [stem, OTHER, [3, 4]],
        "none": [[*stem, 95, 95, 95], [3, 4]],
        "two": [SHORT, [1], LONG, [8, 8]],
        "touching": [[2], LONG, OTHER, [6]],
        "twice": [SHORT, stem, SHORT, [1]],
        "first": [LONG, [4]],
        "last": [stem, OTHER],
    }
    return [
        with_images(name, part, replace(sampling, seed=seed))
        for seed, (name, part) in enumerate(parts.items())
    ]


def logits(request: Request, answer: Answer) -> np.ndarray:
    """Of a whole pass over prompt and answer. Placeholders that are no image's are text."""
    ids = np.array([request.prompt_ids + answer.token_ids])
    features = encode_images(tiny_vision(), [placed.item for placed in request.images])
    given: Any = {"image_features": features} if features else {}
    return np.asarray(forward(seeing_target(), ids, **given).logits[0])


WAYS: list[dict[str, Any]] = [
    {"mm_encoder_cache_tokens": 12},
    {},
    {"exact": True},
    {"mm_draft_embedding": "target"},
    {"eagle_topk": 2, "num_draft_tokens": 5},
]


@pytest.mark.parametrize("changes", sweep(WAYS, WAYS[:1]), ids=str)
def test_greedy_answers_are_the_best_tokens_of_a_whole_pass(changes: dict[str, Any]) -> None:
    """With drafts, for images of every place in a prompt, with pages for less than two of them, and
    where features of one image push out those of another."""
    seeing = engine(3, **changes)
    answers = drive(seeing, requests())
    for request in requests():
        answer = answers[request.request_id]
        best = logits(request, answer)[len(request.prompt_ids) - 1 : -1].argmax(-1)
        assert answer.token_ids == best.tolist(), request.request_id
    assert seeing.stats().num_accepted_tokens > 0
    told = {name: tuple(answer.token_ids) for name, answer in answers.items()}
    assert told["one"] != told["other"], "the image is of no matter"


@pytest.mark.long
def test_logprobs_of_a_prompt_are_those_of_a_whole_pass() -> None:
    scored = requests(replace(GREEDY, prompt_logprobs=1, max_tokens=1))
    answers = drive(engine(3), scored)
    for request in scored:
        answer = answers[request.request_id]
        found = logits(request, answer)
        found = found - np.log(np.exp(found).sum(-1, keepdims=True))
        for position, row in enumerate(answer.outputs[-1].prompt_logprobs[1:], 1):
            token = request.prompt_ids[position]
            assert row is not None
            assert row[token].logprob == pytest.approx(found[position - 1, token], abs=1e-4)


SCORED = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)
CONFIG = EngineConfig(page_size=4)
STEM = [5, 9, 2, 7, 11, 3, 8]
SEEN, LIKE_SEEN = image(1, 8, 6), image(2, 8, 6)
"""12 tokens each."""


def keys(*parts: ImageItem | list[int], **fields: Any) -> list[bytes]:
    return prompt_page_keys(CONFIG, with_images("r", parts, SCORED, **fields))


def shared(some: list[bytes], others: list[bytes]) -> int:
    return sum(one == other for one, other in zip(some, others, strict=True))


def test_pages_that_touch_an_image_are_told_apart_by_it_and_those_before_are_not() -> None:
    seen = keys(STEM, SEEN, STEM)
    assert keys(STEM, SEEN, STEM) == seen
    assert shared(seen, keys(STEM, LIKE_SEEN, STEM)) == 1
    assert shared(seen, keys(STEM, [PAD] * 12, STEM)) == 1
    assert shared(seen, keys([*STEM, *[PAD] * 12, *STEM])) == 1


def test_a_page_whose_next_token_is_an_images_is_told_apart_too() -> None:
    """Draft KV of its last position comes from that token."""
    assert shared(keys(STEM[:4], SEEN, [1]), keys(STEM[:4], LIKE_SEEN, [1])) == 0


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

    alone = told(seeing, with_images("a", [STEM, SEEN, [1, 2]], SCORED, cache_salt="a"))[0]
    first = told(seeing, with_images("b", [STEM, SEEN, [1, 2]], SCORED))
    assert first == (same(alone), 0, 0), "the devices kept the image's features"
    again = told(seeing, with_images("c", [STEM, SEEN, [1, 2]], SCORED))
    assert again == (same(alone), 20, 0)
    text = [*STEM, *[PAD] * 12, 1, 2]
    assert told(seeing, Request("d", text, SCORED))[1] == 4
    other = told(seeing, with_images("e", [STEM, LIKE_SEEN, [1, 2]], SCORED))
    assert other[1:] == (4, 1)
    assert other[0] != same(alone)
    # Page 4 ends at position 16, within the image, and the page behind has other text in it.
    within = told(seeing, with_images("f", [STEM, SEEN, [4, 4, 4]], SCORED))
    fresh = told(seeing, with_images("g", [STEM, SEEN, [4, 4, 4]], SCORED, cache_salt="g"))
    assert within == (same(fresh[0]), 16, 0)


def test_events_name_the_images_that_a_pages_key_covers() -> None:
    log = KVEventLog()
    parts = seeing_target(), None, sizes(0, num_pages=None)
    engine = Engine(*parts, eos_token_ids=(), vision=tiny_vision(), kv_events=log)
    drive(engine, [with_images("a", [STEM, SEEN, [1, 2]], replace(SCORED, max_tokens=1))])
    told = [page for event in log.take() if isinstance(event, PagesStored) for page in event.images]
    assert told == [(), *(((SEEN.digest, 7 - 4 * page),) for page in range(1, 5))]


def shown(seed: int, merge: int, rows: int, columns: int) -> ImageItem:
    """An image of rows x columns tokens, each of merge x merge patches."""
    count = rows * columns * merge**2
    patches = np.random.default_rng(seed).integers(0, 256, (count, 3, 2, 2), np.uint8)
    grid = (1, rows * merge, columns * merge)
    return ImageItem(patches, grid, rows * columns, sha256(patches.tobytes()).digest())


@pytest.mark.parametrize(("merge", "exact"), sweep([(3, False), (5, True)], [(3, False)]))
def test_other_merges_answer_with_the_best_tokens_too(merge: int, exact: bool) -> None:
    """No array of a power of two holds whole tokens of 3 x 3 or of 5 x 5 patches."""
    pixels = PixelConfig(in_patch_limit=20 * merge**2, patch_limit_on_one_side=16 * merge)
    vision = drawn(replace(VISION, merge_size=merge, pixels=pixels))
    target = seeing_target()
    engine = Engine(target, None, sizes(0, exact=exact), eos_token_ids=(), vision=vision)
    parts = [[5, 9], shown(1, merge, 2, 3), [1], shown(2, merge, 1, 7), shown(3, merge, 1, 1), [4]]
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    request = with_images("r", parts, greedy)
    answer = drive(engine, [request])["r"].token_ids
    features = encode_images(vision, [placed.item for placed in request.images])
    ids = np.array([request.prompt_ids + answer])
    best = forward(target, ids, image_features=features).logits[0].argmax(-1)
    assert answer == best[len(request.prompt_ids) - 1 : -1].tolist()
