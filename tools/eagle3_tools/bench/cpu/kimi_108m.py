"""The random model of the plain-decoding benchmark: 108 million parameters, Kimi-K2.5's shape."""

import random

import jax.numpy as jnp
from flax import nnx

from eagle3_jax.config import KimiConfig, RopeConfig
from eagle3_jax.models.kimi import KimiTarget

KIMI_108M = KimiConfig(
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=1536,
    moe_intermediate_size=256,
    num_hidden_layers=8,
    num_attention_heads=8,
    n_routed_experts=32,
    n_shared_experts=1,
    num_experts_per_tok=4,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    q_lora_rank=256,
    kv_lora_rank=128,
    qk_nope_head_dim=64,
    qk_rope_head_dim=32,
    v_head_dim=64,
    rms_norm_eps=1e-6,
    max_position_embeddings=1024,
    rope=RopeConfig(10000.0),
)


def random_target(config: KimiConfig = KIMI_108M) -> KimiTarget:
    """Make a float32 target with weights from N(0, 0.02^2), as transformers initialises."""
    return KimiTarget(config, rngs=nnx.Rngs(0), dtype=jnp.float32)


def random_prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(count)]
