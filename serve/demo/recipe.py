"""Recipe of the embedded pair: tokenizer, sizes, data by step number."""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from convert import write_tokenizer_json
from convert.text.tiktoken_file import NUM_RESERVED
from eagle3_jax.config import KimiConfig, MiniMaxConfig, RopeConfig, YarnConfig
from eagle3_jax.training.packing import Sample
from serve.demo.corpus import SHARES, Conversation, mixture
from serve.demo.corpus.conversation import Message
from serve.demo.tokenizer import train_ranks, write_tokenizer

BASE_TOKENS = 1280
MAX_LENGTH = 1024
ROWS, ROW_LENGTH = 12, 160  # one step's batch; every conversation of the corpus fits into a row
CORPUS_SIZE = 100_000_000  # conversations of one seed
COUNTED = 3000  # conversations in which the ids of answers are counted
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
DRAFT_VOCAB = 512  # more than the ids in the corpus's answers


MakeSamples = Callable[[Sequence[Message], Sequence[Message]], list[Sample]]
"""A function that returns the samples of a conversation's messages and tools."""

# Words of tool declarations that are rare or absent in the corpus.
SCHEMA_WORDS = ("additional", "boolean", "description", "enum", "format", "integer", "items")
SCHEMA_WORDS += ("maximum", "minimum", "nullable", "number", "optional", "required", "schema")


def make_tokenizer(directory: Path) -> None:
    """Train the tokenizer on the corpus, and write its published files."""
    texts = (text for c in islice(mixture("train", 0), 20_000) for text in _texts(c))
    write_tokenizer(directory, train_ranks(chain(SCHEMA_WORDS * 2, texts), BASE_TOKENS), MAX_LENGTH)
    write_tokenizer_json(directory)


class DemoSamples:
    """Practically endless samples of the corpus, each a function of seed and number."""

    def __init__(self, make: MakeSamples, seed: int, *, finish: bool = False) -> None:
        """Store the settings; `make` returns a conversation's only sample, in a list.

        With `finish`, late samples are those of the target's final phase.
        """
        self._make, self._first = make, seed * CORPUS_SIZE
        self._finish_from = FINISH_FROM if finish else CORPUS_SIZE

    def __len__(self) -> int:
        return CORPUS_SIZE

    def __getitem__(self, index: int) -> Sample:
        shares = FINISH_SHARES if index >= self._finish_from else SHARES
        conversation = next(mixture("train", self._first + index, shares))
        (sample,) = self._make(conversation.messages, conversation.tools)
        return sample

    def counts(self, vocab_size: int) -> np.ndarray:
        """Count each id in the answers of the first samples."""
        found = np.zeros(vocab_size, np.int64)
        for index in range(COUNTED):
            sample = self[index]
            ids = np.asarray(sample.token_ids)[np.asarray(sample.wanted, bool)]
            found += np.bincount(ids, minlength=vocab_size)
        return found


def _texts(conversation: Conversation) -> Iterator[str]:
    """Yield all texts that the template shows of a conversation, role names included."""
    yield from ("user", "assistant", "system", "tool_declare")
    if conversation.tools:
        yield json.dumps(list(conversation.tools), separators=(",", ":"))
    for message in conversation.messages:
        yield message["content"]
        if message["role"] == "tool":
            yield f"{message['name']}\n## Return of {message['tool_call_id']}\n"
        for call in message.get("tool_calls", ()):
            yield from (call["id"], call["function"]["arguments"])
