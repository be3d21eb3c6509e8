"""A random pair of models so small that only compiling it takes time.

The draft's attention copies the embedding of its own position in front of the target's head, which
is the larger part of what the target does: they agree often, but not always.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import nnx

from eagle3_jax.config import (
    DraftConfig,
    KimiConfig,
    LatentShape,
    MiniMaxConfig,
    RopeConfig,
    TargetConfig,
    YarnConfig,
)
from eagle3_jax.config.llama import LlamaConfig
from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.mla import MLAttention
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.targets import make_target

VOCAB = 96
HIDDEN = 32
TARGET = KimiConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=48,
    moe_intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    first_k_dense_replace=1,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    q_lora_rank=16,
    kv_lora_rank=12,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=6,
    rms_norm_eps=1e-5,
    max_position_embeddings=4096,
    rope=RopeConfig(10000.0, YarnConfig(4.0, 64, mscale=1.0, mscale_all_dim=1.0)),
)
MINIMAX = MiniMaxConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    rotary_dim=8,
    num_local_experts=4,
    num_experts_per_tok=2,
    rms_norm_eps=1e-5,
    max_position_embeddings=4096,
    rope=RopeConfig(10000.0),
)
LLAMA = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    rms_norm_eps=1e-5,
    max_position_embeddings=4096,
    rope=RopeConfig(10000.0),
)
DRAFT = DraftConfig(
    vocab_size=VOCAB,
    draft_vocab_size=VOCAB,
    hidden_size=HIDDEN,
    target_hidden_size=HIDDEN,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    max_position_embeddings=4096,
    rope=RopeConfig(10000.0),
    aux_layer_ids=(0, 1, 2),
)
LATENT_DRAFT = replace(
    DRAFT,
    num_attention_heads=2,
    rope=RopeConfig(500.0, YarnConfig(2.0, 64, mscale=1.0, mscale_all_dim=1.0)),
    latent=LatentShape(
        q_lora_rank=HIDDEN,
        kv_lora_rank=HIDDEN,
        qk_nope_head_dim=8,
        qk_rope_head_dim=6,
        v_head_dim=HIDDEN // 2,
    ),
)
REDUCED_VOCAB = 40
REDUCED_IDS = range(1, 2 * REDUCED_VOCAB, 2)
HEAD_GAIN = 3.0


def tiny_target(seed: int = 0, config: TargetConfig = TARGET) -> Target:
    """A target whose choices depend on the whole context."""
    target = nnx.eval_shape(lambda: make_target(config, rngs=nnx.Rngs(0), dtype=jnp.float32))
    rng = np.random.default_rng(seed)
    _fill(target, rng, gain=0.6)
    vocab = config.vocab_size
    _set(target.embed_tokens.embedding, rng.normal(size=(vocab, HIDDEN)))
    _set(target.lm_head.kernel, HEAD_GAIN * rng.normal(size=(HIDDEN, vocab)) / math.sqrt(HIDDEN))
    return target


def tiny_draft(target: Target, seed: int = 1, config: DraftConfig = DRAFT) -> Eagle3Draft:
    """A draft with the target's embedding and head."""
    draft = copying_draft(config, seed)
    draft.embed_tokens, draft.lm_head = target.embed_tokens, target.lm_head
    return draft


def latent_draft(target: Target, seed: int = 4, config: DraftConfig = LATENT_DRAFT) -> Eagle3Draft:
    """Like `tiny_draft`, with latent attention."""
    draft, heads = _filled_draft(config, seed), config.num_attention_heads
    draft.embed_tokens, draft.lm_head = target.embed_tokens, target.lm_head
    attention, rng = draft.midlayer.self_attn, np.random.default_rng(seed)
    assert isinstance(attention, MLAttention)
    similar = 0.5 * rng.normal(size=(heads, HIDDEN, 8))
    rotated = np.zeros((heads, HIDDEN, 6))
    queries = np.concatenate([similar, rotated], axis=-1).swapaxes(0, 1)
    _set(attention.q_a_proj.kernel, np.eye(2 * HIDDEN, HIDDEN))
    _set(attention.q_b_proj.kernel, queries.reshape(HIDDEN, -1))
    _set(attention.kv_a_proj_with_mqa.kernel, np.eye(2 * HIDDEN, HIDDEN + 6))
    _set(attention.kv_b_proj.key_kernel, similar)
    _set(attention.kv_b_proj.value_kernel, np.eye(HIDDEN).reshape(HIDDEN, heads, -1).swapaxes(0, 1))
    _set(attention.o_proj.kernel, np.eye(HIDDEN))
    return draft


def reduced_draft(target: Target, seed: int = 2) -> Eagle3Draft:
    """A draft with a head of its own for tokens 1, 3, 5, ... of the first 80."""
    draft = copying_draft(replace(DRAFT, draft_vocab_size=REDUCED_VOCAB), seed)
    draft.embed_tokens = target.embed_tokens
    draft.d2t.set_value(jnp.arange(REDUCED_VOCAB, dtype=jnp.int32) + 1)
    head: Any = target.lm_head.kernel.get_value()
    _set(draft.lm_head.kernel, head[:, np.array(REDUCED_IDS)])
    return draft


def _filled_draft(config: DraftConfig, seed: int) -> Eagle3Draft:
    draft = nnx.eval_shape(lambda: Eagle3Draft(config, rngs=nnx.Rngs(0)))
    _fill(draft, np.random.default_rng(seed), gain=0.3)
    _set(draft.fc.kernel, 0.1 * np.tile(np.eye(HIDDEN), (config.num_aux, 1)))
    return draft


def copying_draft(config: DraftConfig, seed: int = 1) -> Eagle3Draft:
    """A draft that tends to say what was said after the token before; without embedding."""
    draft, rng = _filled_draft(config, seed), np.random.default_rng(seed + 100)
    attention = draft.midlayer.self_attn
    assert isinstance(attention, GQAttention)
    heads = config.num_key_value_heads
    groups = config.num_attention_heads // heads
    similar = rng.normal(size=(2 * HIDDEN, heads, config.head_dim)) / 4
    _set(attention.k_proj.kernel, similar.reshape(2 * HIDDEN, -1))
    _set(attention.q_proj.kernel, np.repeat(similar, groups, axis=1).reshape(2 * HIDDEN, -1))
    _set(attention.v_proj.kernel, np.eye(2 * HIDDEN, HIDDEN))
    out = np.repeat(np.eye(HIDDEN).reshape(heads, config.head_dim, HIDDEN), groups, axis=0)
    _set(attention.o_proj.kernel, out.reshape(-1, HIDDEN) / groups)
    return draft


def _set(param: Any, value: npt.ArrayLike) -> None:
    param.set_value(jnp.asarray(value, jnp.float32))


def _fill(model: nnx.Module, rng: np.random.Generator, gain: float) -> None:
    """Norm weights near 1, matrices that keep the scale of their input times `gain`."""

    def draw(shape: jax.ShapeDtypeStruct) -> jax.Array:
        noise = rng.normal(size=shape.shape)
        if len(shape.shape) == 1:
            return jnp.asarray(1 + 0.1 * noise, shape.dtype)
        return jnp.asarray(gain * noise / math.sqrt(shape.shape[-2]), shape.dtype)

    nnx.update(model, jax.tree.map(draw, nnx.state(model)))
