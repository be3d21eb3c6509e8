"""Prefixes that sequences share: full pages found again by what was run to fill them.

A page's key covers every token up to its end and the one after it, because draft KV at position i
comes from token i+1. So a page has a key only once its next token is known, and a prompt's last
token is never in a page found for it: running it gives the hidden state and the features from
which rounds go on. Without a draft the rule is the same. A request's salt comes before its tokens,
so that nobody learns by the time of an answer what others with another salt have asked. Positions
of an image all hold the same id: the image's digest, of its file and of how it is processed, and
where it begins stand for them, in the key of every page that has some of them.
"""

import math
from array import array
from collections.abc import Collection
from hashlib import blake2b
from itertools import groupby

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.events import ImageInPage, KVEventLog, PagesStored
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.tiers.tier import Tier
from eagle3_jax.engine.kv.tokens_by_tier import TokensByTier
from eagle3_jax.engine.request import Request
from eagle3_jax.engine.sequence import Sequence

KEY_BYTES = 32
"""Prompts come from strangers: nobody shall find two that share a key."""


class PrefixCache:
    """Finds the pages a prompt begins with, and publishes the pages a sequence has filled.

    In exact mode only whole prefill chunks of prompts are shared, so that every row a sequence
    reads was written by the program, and at the place in the chunk, that would have written it.
    A prompt whose logprobs are asked for is run whole, in exact mode by a program of its own.
    num_queries, hits: tokens of the sequences admitted so far, and those of them found.
    """

    def __init__(
        self,
        pages: PagePool,
        config: EngineConfig,
        tier: Tier | None = None,
        events: KVEventLog | None = None,
    ):
        """events: the log that `pages` writes to."""
        self._tier = tier
        self._least_loaded = config.kv_offloading_least_tokens
        self.num_queries = 0
        self.hits = TokensByTier()
        self._pages = pages
        self._events = events
        self._enabled = config.enable_prefix_caching
        self._exact = config.exact
        self._page_tokens = config.page_tokens
        self._unit = _shared_rows(config) // config.page_tokens

    def prompt_keys(self, sequence: Sequence) -> list[bytes]:
        """The keys of the pages that a prompt as it is can share, whoever has them."""
        if not self._enabled or sequence.scores_prompt:
            return []
        count = (len(sequence.request.prompt_ids) - 1) // self._page_tokens
        return self._keys(sequence, self._whole(count))

    def find(self, sequence: Sequence) -> list[bytes]:
        """The keys of the pages its prompt begins with, in the cache or in the tier below it."""
        if not self._enabled or sequence.scores_prompt:
            return []
        keys = self._keys(sequence, (len(sequence.prefill_ids) - 1) // self._page_tokens)
        here = self._pages.count_known(keys)
        if self._tier is None:
            return keys[: self._whole(here)]
        count = here
        while count < len(keys):
            known = self._pages.count_known(keys[count:]) or self._tier.match(keys[count:])
            if not known:
                break
            count += known
        found = keys[: self._whole(count)]
        below = sum(not self._pages.knows(key) for key in found)
        enough = below * self._page_tokens >= self._least_loaded
        return found if enough else keys[: self._whole(here)]

    def reused(self, sequence: Sequence, keys: list[bytes], below: Collection[bytes] = ()) -> None:
        """A sequence has the pages of these keys, some of them from below, and skips their rows."""
        sequence.num_published = len(keys)
        sequence.num_prefilled = len(keys) * self._page_tokens
        if self._events is not None and below:
            self._note_stored(self._events, sequence, 0, [key in below for key in keys])

    def count(self, sequence: Sequence) -> None:
        """Notes what an admitted sequence found; only its first admission counts."""
        if self._enabled and sequence.cached is None:
            here = sequence.num_prefilled - sequence.loaded.total
            sequence.cached = sequence.loaded._replace(device=here)
            self.num_queries += len(sequence.prefill_ids)
            self.hits = self.hits.plus(sequence.cached)

    def publish(self, sequence: Sequence, num_final: int) -> None:
        """Shares the pages within the first `num_final` rows.

        Their target and draft KV must be final in every program dispatched from now on, and the
        token at position num_final known.
        """
        if not self._enabled or (self._exact and sequence.scores_prompt):
            return
        if self._exact:
            num_final = min(num_final, len(sequence.prefill_ids) - 1)
        count, first = self._whole(num_final // self._page_tokens), sequence.num_published
        if count > first:
            keys = self._keys(sequence, count)
            pages = zip(sequence.pages[first:count], keys[first:], strict=True)
            named = [self._pages.publish(page, key) for page, key in pages]
            sequence.num_published = count
            if self._events is not None:
                self._note_stored(self._events, sequence, first, named)

    def _note_stored(
        self, events: KVEventLog, sequence: Sequence, first: int, named: list[bool]
    ) -> None:
        """An event for each run of the pages from the first on that got their keys: those between
        are there already, of another sequence."""
        size = self._page_tokens
        for is_named, run in groupby(range(len(named)), named.__getitem__):
            if not is_named:
                continue
            pages = [first + index for index in run]
            start, end = pages[0], pages[-1] + 1
            tokens = sequence.tokens_between(start * size, end * size + 1)
            firsts = range(start * size, end * size, size)
            images = tuple(images_in(sequence.request, first, size + 1) for first in firsts)
            event = PagesStored(
                keys=tuple(sequence.page_keys[start:end]),
                parent_key=sequence.page_keys[start - 1] if start else None,
                token_ids=tuple(tokens[:-1]),
                lookahead_token_ids=tuple(tokens[size::size]),
                page_tokens=size,
                salt=sequence.request.cache_salt,
                medium="GPU",
                images=images if any(images) else (),
            )
            events.stored(event)

    def _whole(self, count: int) -> int:
        return count - count % self._unit

    def _keys(self, sequence: Sequence, count: int) -> list[bytes]:
        """The keys of a sequence's first pages; it keeps them."""
        keys = sequence.page_keys
        for start in range(
            len(keys) * self._page_tokens, count * self._page_tokens, self._page_tokens
        ):
            tokens = sequence.tokens_between(start, start + self._page_tokens + 1)
            before = keys[-1] if keys else _salt_key(sequence.request.cache_salt)
            keys.append(_next_key(before, tokens, images_in(sequence.request, start, len(tokens))))
        return keys[:count]


def prompt_page_keys(config: EngineConfig, request: Request) -> list[bytes]:
    """The keys of the pages of a prompt that others can share, as every engine of these page sizes
    names them."""
    prompt_ids, size, rows = request.prompt_ids, config.page_tokens, _shared_rows(config)
    keys: list[bytes] = []
    before = _salt_key(request.cache_salt)
    for start in range(0, (len(prompt_ids) - 1) // rows * rows, size):
        tokens = prompt_ids[start : start + size + 1]
        before = _next_key(before, tokens, images_in(request, start, len(tokens)))
        keys.append(before)
    return keys


def images_in(request: Request, start: int, length: int) -> tuple[ImageInPage, ...]:
    """The images that some of these positions of a prompt are of."""
    end = start + length
    touching = (i for i in request.images if i.start < end and i.end > start)
    return tuple(ImageInPage(i.item.digest, i.start - start) for i in touching)


def _shared_rows(config: EngineConfig) -> int:
    """Prompts share whole multiples of these: pages, in exact mode whole chunks of them."""
    return math.lcm(config.page_tokens, config.prefill_chunk if config.exact else 1)


def _next_key(before: bytes, tokens: list[int], images: tuple[ImageInPage, ...]) -> bytes:
    """Of the page behind the one of key `before`: its tokens and the one after it, and the images
    that these are of."""
    text = before + array("q", tokens).tobytes()
    if not images:
        return blake2b(text, digest_size=KEY_BYTES).digest()
    seen = b"".join(image.digest + array("q", [image.offset]).tobytes() for image in images)
    return blake2b(text + seen, digest_size=KEY_BYTES, person=b"images").digest()


def _salt_key(salt: str) -> bytes:
    """What the keys of a salt begin with; no page has such a key."""
    if not salt:
        return b""
    text = salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=KEY_BYTES, person=b"cache_salt").digest()
