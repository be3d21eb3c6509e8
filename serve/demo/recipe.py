"""How the embedded pair is made: tokenizer, sizes, data by step number."""

import json
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from convert import Tokenizer, write_tokenizer_json
from convert.text.tiktoken_file import NUM_RESERVED
from eagle3_jax.config import KimiConfig, RopeConfig, YarnConfig
from eagle3_jax.training.packing import PackedBatch, pack
from serve.demo.corpus import SHARES, Conversation, mixture
from serve.demo.tokenizer import train_ranks, write_tokenizer
from serve.demo.training_data import sample_maker

BASE_TOKENS = 1280
MAX_LENGTH = 1024
ROWS, ROW_LENGTH = 12, 160  # one step's batch; no conversation of the corpus is longer than a row
STEPS_PER_SEED = 10_000_000
FINISH_FROM = 2900  # from this step on the target practises what it learns last
FINISH_SHARES = (4, 14, 1, 1, 1)

# Kimi-K2.5's architecture with small numbers; eos: <|im_end|> first, then [EOS].
TARGET = KimiConfig(
    vocab_size=BASE_TOKENS + NUM_RESERVED,
    hidden_size=256,
    intermediate_size=768,
    moe_intermediate_size=128,
    num_hidden_layers=6,
    num_attention_heads=4,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    routed_scaling_factor=1.5,
    norm_topk_prob=True,
    q_lora_rank=128,
    kv_lora_rank=64,
    qk_nope_head_dim=32,
    qk_rope_head_dim=32,
    v_head_dim=64,
    rms_norm_eps=1e-5,
    max_position_embeddings=MAX_LENGTH,
    rope=RopeConfig(50000.0, YarnConfig(4.0, 256, mscale=1.0, mscale_all_dim=1.0)),
    eos_token_ids=(BASE_TOKENS + 2, BASE_TOKENS + 1),
)
DRAFT_VOCAB = 512  # more than the answers of the corpus use


# Words of tool declarations that the corpus itself seldom or never has.
SCHEMA_WORDS = ("additional", "boolean", "description", "enum", "format", "integer", "items")
SCHEMA_WORDS += ("maximum", "minimum", "nullable", "number", "optional", "required", "schema")


def make_tokenizer(directory: Path) -> None:
    """Trains the tokenizer on the corpus and writes its published files."""
    texts = (text for c in islice(mixture("train", 0), 20_000) for text in _texts(c))
    write_tokenizer(directory, train_ranks(chain(SCHEMA_WORDS * 2, texts), BASE_TOKENS), MAX_LENGTH)
    write_tokenizer_json(directory)


def demo_batches(tokenizer: Tokenizer, seed: int) -> Callable[[int], PackedBatch]:
    """The batch of each step: fresh conversations, a function of seed and step alone."""
    sample = sample_maker(tokenizer)

    def batch_at(step: int) -> PackedBatch:
        shares = FINISH_SHARES if step >= FINISH_FROM else SHARES
        stream = mixture("train", seed * STEPS_PER_SEED + step, shares)
        return pack((sample(c.messages, c.tools) for c in stream), ROWS, ROW_LENGTH)

    return batch_at


def _texts(conversation: Conversation) -> Iterator[str]:
    """Everything the template will show of a conversation, role names included."""
    yield from ("user", "assistant", "system", "tool_declare")
    if conversation.tools:
        yield json.dumps(list(conversation.tools), separators=(",", ":"))
    for message in conversation.messages:
        yield message["content"]
        if message["role"] == "tool":
            yield f"{message['name']}\n## Return of {message['tool_call_id']}\n"
        for call in message.get("tool_calls", ()):
            yield from (call["id"], call["function"]["arguments"])
