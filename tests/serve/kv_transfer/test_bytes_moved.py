"""Bytes that a prompt's token costs between two servers, with rows as Kimi-K2.5's pair has them."""

from dataclasses import replace

import pytest
from driving import drive, sizes
from flax import nnx
from test_prefill_apart import PAGES, Ends, produced, request, went_on
from tiny import DRAFT, HIDDEN, LATENT_DRAFT, TARGET, tiny_target

from eagle3_jax.config import DraftConfig, LatentShape
from eagle3_jax.engine import Engine
from eagle3_jax.models.eagle3 import Eagle3Draft
from serve.kv_transfer.config import KVRole, KVTransferConfig
from serve.kv_transfer.transfers import Transfers

LAYERS, LATENT = 61, 2 * (512 + 64)
"""Of Kimi-K2.5; bytes of a latent and a rotated key in bfloat16."""
MHA = replace(DRAFT, num_attention_heads=64, num_key_value_heads=64, head_dim=128)
MLA = replace(LATENT_DRAFT, latent=LatentShape(HIDDEN, 512, 8, 64, HIDDEN // 2))


def end(role: KVRole, layers: int, config: DraftConfig) -> Ends:
    """An engine of small models with published rows, and its end of transfers."""
    kimi = replace(TARGET, num_hidden_layers=layers, kv_lora_rank=512, qk_rope_head_dim=64)
    target, draft = tiny_target(config=kimi), Eagle3Draft(config, rngs=nnx.Rngs(0))
    draft.embed_tokens, draft.lm_head = target.embed_tokens, target.lm_head
    fields = sizes(3, kv_offloading_bytes=2**30, kv_cache_dtype="bfloat16")
    engine = Engine(target, draft, fields)
    return engine, Transfers(engine, KVTransferConfig(role, port=0))


FORMS = pytest.mark.parametrize(
    ("config", "of_draft"), [(MLA, LATENT), (MHA, 2 * 64 * 128 * 2)], ids=["MLA", "MHA"]
)


@FORMS
def test_a_page_holds_the_rows_of_its_target_and_its_draft(
    config: DraftConfig, of_draft: int
) -> None:
    engine, _ = end("producer", 2, config)
    tokens = engine.config.page_tokens
    assert engine.host_pages.page_bytes == tokens * (2 * LATENT + of_draft)


@pytest.mark.long
@FORMS
def test_a_token_costs_the_rows_of_its_target_and_its_draft(
    config: DraftConfig, of_draft: int
) -> None:
    """Of all layers: 71,424 bytes with an MLA draft, 103,040 with an MHA draft."""
    producer, taker = end("producer", LAYERS, config), end("consumer", LAYERS, config)
    answer = went_on(taker, produced(producer), tokens=1)
    moved, tokens = taker[1].puller, answer.outputs[-1].cached_tokens
    assert moved and tokens == PAGES * taker[0].config.page_tokens
    assert moved.counts.bytes / tokens == LAYERS * LATENT + of_draft
    assert drive(producer[0], [request("alone", 1)])["alone"].token_ids == answer.token_ids
