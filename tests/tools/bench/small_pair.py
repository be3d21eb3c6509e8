"""A random pair so small that only compiling it takes time, as the benchmarks load one.

With so few words to say, the draft is right now and then.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from flax import nnx
from oracle_files import ORACLES

from convert import load_tokenizer
from eagle3_jax import DraftConfig, Eagle3Draft
from eagle3_jax.config import RopeConfig
from eagle3_tools.bench.cpu.kimi_108m import KIMI_108M, random_target
from serve.pair.generation_config import SamplingDefaults
from serve.pair.loading import LoadedPair

TARGET = replace(
    KIMI_108M,
    vocab_size=12,
    hidden_size=32,
    intermediate_size=48,
    moe_intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    n_routed_experts=4,
    num_experts_per_tok=2,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=8,
)
DRAFT = DraftConfig(
    vocab_size=12,
    draft_vocab_size=12,
    hidden_size=32,
    target_hidden_size=32,
    intermediate_size=24,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    rms_norm_eps=1e-6,
    max_position_embeddings=1024,
    rope=RopeConfig(10000.0),
    aux_layer_ids=(0, 1, 2),
)
PROMPTS = [[9, 1, 7, 5, 10, 3], [3, 2, 8, 4], [7, 7, 9, 2, 3, 0, 11], [8, 3, 1]]


@cache
def small_pair() -> LoadedPair:
    target = random_target(TARGET)
    # As drawn, the logits are all but equal and every choice close to a tie.
    head: Any = target.lm_head.kernel
    for weights in (target.embed_tokens.embedding, head):
        weights.set_value(50 * weights.get_value())
    draft = Eagle3Draft(DRAFT, rngs=nnx.Rngs(1), embed_tokens=target.embed_tokens)
    draft.lm_head.kernel = nnx.Param(head.get_value())
    tokenizer = load_tokenizer(ORACLES / "tokenizer")
    return LoadedPair(target, draft, tokenizer, SamplingDefaults({}, ()))
