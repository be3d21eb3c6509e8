"""Recipe of the embedded pair: tokenizer, sizes, data by step number."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from convert import write_tokenizer_json
from convert.text.tiktoken_file import NUM_RESERVED
from eagle3_jax.config import KimiConfig, MiniMaxConfig, RopeConfig, YarnConfig
from eagle3_jax.training.packing import Sample
from eagle3_tools.make_demo.corpus import SHARES, Conversation, mixture
from eagle3_tools.make_demo.tokenizer import train_ranks, write_tokenizer
from serve.train.data import MakeSamples

BASE_TOKENS = 1280
MAX_LENGTH = 1024
ROWS, ROW_LENGTH = 12, 160  # one step's batch; every conversation of the corpus fits into a row
CORPUS_SIZE = 100_000_000  # conversations of one seed
FINISH_FROM = 67_000  # first sample of the target's final phase
FINISH_SHARES = (4, 14, 1, 1, 1)

# Kimi-K2.5's architecture with small sizes; eos: <|im_end|> first, then [EOS].
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
MINIMAX = MiniMaxConfig(
    vocab_size=TARGET.vocab_size,
    hidden_size=128,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    rotary_dim=16,
    num_local_experts=8,
    num_experts_per_tok=2,
    rms_norm_eps=1e-5,
    max_position_embeddings=MAX_LENGTH,
    rope=RopeConfig(50000.0),
    eos_token_ids=TARGET.eos_token_ids,
)
"""MiniMax-M2.5's architecture with smaller sizes; its chats are in Kimi's format."""
TARGETS = {"kimi": TARGET, "minimax": MINIMAX}

# Words of tool declarations that are rare or absent in the corpus.
SCHEMA_WORDS = ("additional", "boolean", "description", "enum", "format", "integer", "items")
SCHEMA_WORDS += ("maximum", "minimum", "nullable", "number", "optional", "required", "schema")


def make_tokenizer(directory: Path) -> None:
    """Train the tokenizer on the corpus, and write its published files."""
    texts = (text for c in islice(mixture("train", 0), 20_000) for text in _texts(c))
    write_tokenizer(directory, train_ranks(chain(SCHEMA_WORDS * 2, texts), BASE_TOKENS), MAX_LENGTH)
    write_tokenizer_json(directory)


def conversation(seed: int, index: int, shares: Sequence[float] = SHARES) -> Conversation:
    """Return a training conversation of the corpus, a function of seed and index."""
    return next(mixture("train", seed * CORPUS_SIZE + index, shares))


class DemoSamples:
    """Practically endless samples for a target; late ones are those of its final phase.

    `make` returns a conversation's only sample, in a list.
    """

    def __init__(self, make: MakeSamples, seed: int) -> None:
        self._make, self._seed = make, seed

    def __len__(self) -> int:
        return CORPUS_SIZE

    def __getitem__(self, index: int) -> Sample:
        shares = FINISH_SHARES if index >= FINISH_FROM else SHARES
        found = conversation(self._seed, index, shares)
        (sample,) = self._make(found.messages, found.tools)
        return sample


def _texts(told: Conversation) -> Iterator[str]:
    """Yield all texts that the template shows of a conversation, role names included."""
    yield from ("user", "assistant", "system", "tool_declare")
    if told.tools:
        yield json.dumps(list(told.tools), separators=(",", ":"))
    for message in told.messages:
        yield message["content"]
        if message["role"] == "tool":
            yield f"{message['name']}\n## Return of {message['tool_call_id']}\n"
        for call in message.get("tool_calls", ()):
            yield from (call["id"], call["function"]["arguments"])
