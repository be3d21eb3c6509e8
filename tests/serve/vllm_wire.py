"""A subscriber of vLLM 0.33's KV events, by the fields that vLLM publishes."""

from collections.abc import Iterator
from typing import Any

import msgspec
import zmq
from kv_index import IndexCopy

WAIT_MS = 20_000
END = (-1).to_bytes(8, "big", signed=True)


class KVCacheEvent(msgspec.Struct, tag=True, omit_defaults=True):
    """Its name is in the map's field `type`."""


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decoder = msgspec.msgpack.Decoder(KVEventBatch)


def apply(copy: IndexCopy, batch: KVEventBatch) -> None:
    for event in batch.events:
        match event:
            case BlockStored():
                keys = event.extra_keys
                salt = str(keys[0][0]) if keys and keys[0] else ""
                ahead = [token for (token,) in event.lookahead_token_ids or ()]
                hashes, tokens = event.block_hashes, event.token_ids
                where = event.medium or ""
                copy.store(hashes, event.parent_block_hash, tokens, ahead, salt, where)
            case BlockRemoved():
                copy.remove(event.block_hashes, event.medium or "")
            case AllBlocksCleared():
                copy.clear()


class Subscriber:
    """Two sockets: one gets what is published, one asks for what was."""

    def __init__(
        self, endpoint: str, replay: str | None = None, topic: str = "", most: int = 1000
    ) -> None:
        """most: messages that wait to be read."""
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.rcvhwm = most
        self.live.subscribe(topic.encode())
        self.live.connect(endpoint)
        self.replays = self.context.socket(zmq.DEALER)
        self.replays.rcvhwm = most
        if replay:
            self.replays.connect(replay)

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    def next(self) -> tuple[int, KVEventBatch]:
        """The next number and its batch."""
        assert self.live.poll(WAIT_MS), "nothing came"
        _, number, payload = self.live.recv_multipart()
        return int.from_bytes(number, "big"), decoder.decode(payload)

    def replay(self, first: int) -> Iterator[tuple[int, KVEventBatch]]:
        """Yield the kept batches from a number on."""
        self.replays.send_multipart((b"", first.to_bytes(8, "big")))
        while self.replays.poll(WAIT_MS):
            _, _, number, payload = self.replays.recv_multipart()
            if number == END:
                assert payload == b""
                return
            yield int.from_bytes(number, "big"), decoder.decode(payload)
        raise AssertionError("the replay has no end")


def follow(endpoint: str, replay: str, last: int) -> IndexCopy:
    """The index after batch `last`, whenever this subscriber came."""
    copy, known = IndexCopy(), -1
    with Subscriber(endpoint, replay) as subscriber:
        while known < last:
            for number, batch in subscriber.replay(known + 1):
                apply(copy, batch)
                known = number
    return copy
