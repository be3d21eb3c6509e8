"""Encode events as vLLM 0.33: msgpack, a batch as an array, an event as a tagged map.

Fields and their order equal those of vllm.distributed.kv_events, to the byte. Fields of type None
are for features that this engine lacks: adapters, several kinds of attention, other stores,
sessions. They are null or omitted as in vLLM.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from eagle3_jax.engine.kv.events import AllCleared, ImageInPage, KVEvent, PagesRemoved, PagesStored

DATA_PARALLEL_RANK = 0
"""Always 0: events name no replica."""
GROUP = 0
"""The only group of layers: target and draft share pages."""
INT_BYTES = 8
Hash = int | bytes


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """An event of stored pages; `extra_keys` has all else that each block's hash covers.

    That is, images as ("mm", digest in hex, offset), and a cache_salt.
    """

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: None
    medium: str
    lora_name: None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: None = None
    kv_cache_spec_sliding_window: None = None
    locality: None = None
    ownership: None = None
    session_id: None = None
    lookahead_token_ids: list[tuple[int]] | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """An event of hashes that were removed from a medium."""

    block_hashes: list[Hash]
    medium: str
    group_idx: int | None = None
    locality: None = None
    ownership: None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """An event of the removal of all pages."""


class EventBatch(msgspec.Struct, array_like=True):
    """Changes of one engine step; `ts` is in seconds since 1970."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


class EventEncoder:
    """An encoder of batches; `int_hashes` for keys as the numbers of their last 8 bytes.

    `lookahead` adds the token after each page; some readers refuse such events.
    """

    def __init__(self, *, int_hashes: bool = True, lookahead: bool = True) -> None:
        self._int_hashes = int_hashes
        self._lookahead = lookahead
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, seconds: float, events: Sequence[KVEvent]) -> bytes:
        """Encode one batch, written at `seconds` since 1970."""
        wired = [self._wired(event) for event in events]
        return self._encoder.encode(EventBatch(seconds, wired, DATA_PARALLEL_RANK))

    def _wired(self, event: KVEvent) -> Any:
        match event:
            case PagesStored():
                return self._stored(event)
            case PagesRemoved(keys, medium):
                return BlockRemoved([self._hash(key) for key in keys], medium, GROUP)
            case AllCleared():
                return AllBlocksCleared()

    def _stored(self, event: PagesStored) -> BlockStored:
        covered = [_images(page) for page in event.images] or [()] * len(event.keys)
        if event.salt and event.parent_key is None:
            # UTF-8 cannot encode a lone surrogate, which JSON can hold.
            salt = event.salt.encode("utf-8", "backslashreplace").decode("utf-8")
            covered[0] = (*covered[0], salt)
        extra = [keys or None for keys in covered]
        parent = event.parent_key
        lookahead = [(token,) for token in event.lookahead_token_ids] if self._lookahead else None
        return BlockStored(
            block_hashes=[self._hash(key) for key in event.keys],
            parent_block_hash=None if parent is None else self._hash(parent),
            token_ids=event.token_ids,
            block_size=event.page_tokens,
            lora_id=None,
            medium=event.medium,
            lora_name=None,
            extra_keys=extra,
            group_idx=GROUP,
            lookahead_token_ids=lookahead or None,
        )

    def _hash(self, key: bytes) -> Hash:
        return int.from_bytes(key[-INT_BYTES:], "big") if self._int_hashes else key


def _images(page: Sequence[ImageInPage]) -> tuple[Any, ...]:
    return tuple(("mm", image.digest.hex(), image.offset) for image in page)
