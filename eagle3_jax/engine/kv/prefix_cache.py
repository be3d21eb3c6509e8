"""Prefix cache: full pages shared between sequences and found by their contents.

A page's key covers every token up to its end and the next one, because draft KV at position i comes
from token i+1. So a page has a key only once its next token is known, and a prompt's last token is
never in a page found for it: running it gives the hidden state and features from which rounds
continue. The rule is the same without a draft. A request's salt precedes its tokens, so response
times do not reveal prompts of users with another salt. Positions of an image all have one id; in
the keys of its pages, its digest (of file and processing) and its start stand for them.
"""

import math
from array import array
from collections.abc import Collection
from hashlib import blake2b
from itertools import groupby

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.events import ImageInPage, KVEventLog, PagesStored
from eagle3_jax.engine.kv.host_tier import HostTier
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.page_tiers import TokensByTier
from eagle3_jax.engine.request import Request
from eagle3_jax.engine.sequence import Sequence

KEY_BYTES = 32
"""Prompts are untrusted, so collisions of keys must be infeasible."""


class PrefixCache:
    """Finds the cached pages of a prompt's prefix, and publishes pages that a sequence has filled.

    In exact mode only whole prefill chunks of prompts are shared. Every row that a sequence reads
    was then written by the same program and at the same place in a chunk as its own would be. A
    prompt with logprobs is run whole; in exact mode by a separate program. `num_queries` and `hits`
    count tokens of admitted sequences, and those of them found.
    """

    def __init__(
        self,
        pages: PagePool,
        config: EngineConfig,
        tier: HostTier | None = None,
        events: KVEventLog | None = None,
    ):
        """`events` is the log that `pages` writes to."""
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
        """Return the keys of the pages that a prompt can share, whether or not they are cached."""
        if not self._enabled or sequence.scores_prompt:
            return []
        count = (len(sequence.request.prompt_ids) - 1) // self._page_tokens
        return self._keys(sequence, self._whole(count))

    def find(self, sequence: Sequence) -> list[bytes]:
        """Return the keys of the prompt's first pages that the cache or the tier has."""
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
        """Mark the pages of these keys, some loaded from `below`, as prefilled."""
        sequence.num_published = len(keys)
        sequence.num_prefilled = len(keys) * self._page_tokens
        if self._events is not None and below:
            self._note_stored(self._events, sequence, 0, [key in below for key in keys])

    def count(self, sequence: Sequence) -> None:
        """Count the tokens that an admitted sequence found, on its first admission only."""
        if self._enabled and sequence.cached is None:
            here = sequence.num_prefilled - sequence.loaded.total
            sequence.cached = sequence.loaded._replace(device=here)
            self.num_queries += len(sequence.prefill_ids)
            self.hits = self.hits.plus(sequence.cached)

    def publish(self, sequence: Sequence, num_final: int) -> None:
        """Share the pages within the first `num_final` rows.

        Their target and draft KV must be final in every program dispatched from now on, and the
        token at position num_final must be known.
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
        """Record one event per run of pages that got keys; other sequences have the rest."""
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
        """Return the keys of a sequence's first pages, and cache them in the sequence."""
        keys = sequence.page_keys
        for start in range(
            len(keys) * self._page_tokens, count * self._page_tokens, self._page_tokens
        ):
            tokens = sequence.tokens_between(start, start + self._page_tokens + 1)
            before = keys[-1] if keys else _salt_key(sequence.request.cache_salt)
            keys.append(_next_key(before, tokens, images_in(sequence.request, start, len(tokens))))
        return keys[:count]


def prompt_page_keys(config: EngineConfig, request: Request) -> list[bytes]:
    """Return the keys of a prompt's shareable pages, equal in all engines with these page sizes."""
    prompt_ids, size, rows = request.prompt_ids, config.page_tokens, _shared_rows(config)
    keys: list[bytes] = []
    before = _salt_key(request.cache_salt)
    for start in range(0, (len(prompt_ids) - 1) // rows * rows, size):
        tokens = prompt_ids[start : start + size + 1]
        before = _next_key(before, tokens, images_in(request, start, len(tokens)))
        keys.append(before)
    return keys


def images_in(request: Request, start: int, length: int) -> tuple[ImageInPage, ...]:
    """Return the images that touch these positions of a prompt."""
    end = start + length
    touching = (i for i in request.images if i.start < end and i.end > start)
    return tuple(ImageInPage(i.item.digest, i.start - start) for i in touching)


def _shared_rows(config: EngineConfig) -> int:
    """Return the unit of shared rows: a page, or in exact mode whole pages and chunks."""
    return math.lcm(config.page_tokens, config.prefill_chunk if config.exact else 1)


def _next_key(before: bytes, tokens: list[int], images: tuple[ImageInPage, ...]) -> bytes:
    """Return the key after `before` for a page's tokens, lookahead token and images."""
    text = before + array("q", tokens).tobytes()
    if not images:
        return blake2b(text, digest_size=KEY_BYTES).digest()
    seen = b"".join(image.digest + array("q", [image.offset]).tobytes() for image in images)
    return blake2b(text + seen, digest_size=KEY_BYTES, person=b"images").digest()


def _salt_key(salt: str) -> bytes:
    """Return the initial key of a salt; no page has this key."""
    if not salt:
        return b""
    text = salt.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=KEY_BYTES, person=b"cache_salt").digest()
