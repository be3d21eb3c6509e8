"""The bytes of a batch are those that vLLM's own structures encode to."""

import msgspec
import pytest
from vllm_wire import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch, decoder

from eagle3_jax.engine.kv.events import AllCleared, PagesRemoved, PagesStored
from serve.kv_events.encoding import EventEncoder

FIRST, SECOND, THIRD = (bytes([number]) * 24 + bytes(range(8)) for number in (200, 201, 202))
NUMBER = int.from_bytes(bytes(range(8)), "big")
TOKENS = (5, 6, 163_000, 0)


def stored(parent: bytes | None, salt: str = "") -> PagesStored:
    return PagesStored((FIRST, SECOND), parent, TOKENS, (163_000, 9), 2, salt, "GPU")


def vllm_stored(parent: bytes | None, salt: tuple[str, ...] | None = None) -> BlockStored:
    return BlockStored(
        block_hashes=[FIRST, SECOND],
        parent_block_hash=parent,
        token_ids=list(TOKENS),
        block_size=2,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=[salt, None],
        group_idx=0,
        lookahead_token_ids=[[163_000], [9]],
    )


@pytest.mark.parametrize(
    "event, vllm",
    [
        (stored(None), vllm_stored(None)),
        (stored(THIRD), vllm_stored(THIRD)),
        (stored(None, "mine"), vllm_stored(None, ("mine",))),
        (stored(THIRD, "mine"), vllm_stored(THIRD)),
        (stored(None, "\ud800"), vllm_stored(None, ("\\ud800",))),
        (PagesRemoved((FIRST, THIRD), "CPU"), BlockRemoved([FIRST, THIRD], "CPU", 0)),
        (PagesRemoved((FIRST,), "STORAGE"), BlockRemoved([FIRST], "STORAGE", 0)),
        (AllCleared(), AllBlocksCleared()),
    ],
)
def test_a_batch_has_vllms_bytes(
    event: PagesStored | PagesRemoved | AllCleared,
    vllm: BlockStored | BlockRemoved | AllBlocksCleared,
) -> None:
    ours = EventEncoder(int_hashes=False).encode(1.5, [event, AllCleared()])
    assert ours == msgspec.msgpack.encode(KVEventBatch(1.5, [vllm, AllBlocksCleared()], 0))


def test_hashes_are_the_last_64_bits_of_keys_unless_asked_for_whole() -> None:
    batch = decoder.decode(
        EventEncoder().encode(0.0, [stored(THIRD), PagesRemoved((FIRST,), "GPU")])
    )
    assert isinstance(batch.events[0], BlockStored) and isinstance(batch.events[1], BlockRemoved)
    assert batch.events[0].block_hashes == [NUMBER, NUMBER]
    assert batch.events[0].parent_block_hash == batch.events[1].block_hashes[0] == NUMBER


def test_a_page_of_unknown_tokens_is_told_by_its_hash_and_the_lookahead_may_be_left_out() -> None:
    """vLLM's tiers send no tokens and a block of none."""
    payload = EventEncoder().encode(0.0, [PagesStored((FIRST,), None, (), (), 0, "", "STORAGE")])
    (event,) = decoder.decode(payload).events
    assert isinstance(event, BlockStored) and event.medium == "STORAGE"
    assert (event.block_hashes, event.token_ids, event.block_size) == ([NUMBER], [], 0)
    assert event.lookahead_token_ids is None
    payload = EventEncoder(lookahead=False).encode(0.0, [stored(None)])
    assert b"lookahead_token_ids" not in payload
