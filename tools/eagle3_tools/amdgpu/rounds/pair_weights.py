"""Weights of a pair that says what its context says, by margins that no rounding can turn round.

A token's id is two codes, id = last * 16 + found. The first half of a hidden state has codes of the
last token, which name the first code of the next one; into the other half attention writes those of
the token with the largest key, which name the second. All else is noise. The draft does the same
with its embedding and its state, and mistakes some codes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.tree_util import keystr

from eagle3_jax.config import DraftConfig, KimiConfig
from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.mla import MLAttention
from eagle3_jax.layers.moe import MoE
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget

FOUND_CODES = 16
MISTAKEN = 10
"""First codes that the draft takes for one another."""
HEAD_GAIN = 0.1
ROUTER_GAIN = 0.03
NOISE = 0.4
GAINS = {"gate_proj": 1.0, "up_proj": 1.0, "gate": 0.1}
"""Of some matrices' noise, beside what keeps the scale of their input: a gated product of less
would be next to nothing, and a router of more would have near ties."""


@dataclass(frozen=True)
class Codes:
    """last [vocab / 16, half] and found [16, half]: orthogonal, of values about 1. embedding
    [vocab, hidden]: each token's first half is a sum of one of both."""

    last: np.ndarray
    found: np.ndarray
    embedding: np.ndarray

    def head(self, last: Sequence[int]) -> np.ndarray:
        """[hidden, vocab], its columns for first codes in this order."""
        first = np.repeat(self.last[list(last)], FOUND_CODES, axis=0)
        second = np.tile(self.found, (len(last), 1))
        return HEAD_GAIN * np.concatenate([first, second], axis=1).T

    def router(self, experts: int) -> np.ndarray:
        """[hidden, experts]: two experts for each code of last tokens, one before the other."""
        codes = np.arange(len(self.last))
        first, second = codes % experts, (codes + 1 + codes // experts) % experts
        chosen = np.eye(experts)[first] + np.eye(experts)[second] * 0.75
        inputs = np.concatenate([self.last, np.zeros_like(self.last)], axis=1).T
        return ROUTER_GAIN * inputs @ chosen


def draw_codes(rng: np.random.Generator, config: KimiConfig) -> Codes:
    """Which codes a token brings is random."""
    vocab, hidden = config.vocab_size, config.hidden_size
    counts = vocab // FOUND_CODES, FOUND_CODES
    rotation, _ = np.linalg.qr(rng.normal(size=(hidden // 2, hidden // 2)))
    last, found, _ = np.split(math.sqrt(hidden // 2) * rotation, np.cumsum(counts))
    brings_last, brings_found = (rng.integers(0, count, vocab) for count in counts)
    embedding = rng.normal(size=(vocab, hidden)) / 4
    embedding[:, : hidden // 2] += last[brings_last] + found[brings_found]
    # What makes one query of all tokens.
    embedding[:, 0] = 2
    return Codes(last, found, embedding)


def structured_target(codes: Codes, rng: np.random.Generator, config: KimiConfig) -> KimiTarget:
    """In bfloat16; the first layer's attention finds the token with the largest key."""
    target = nnx.eval_shape(lambda: KimiTarget(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16))
    _fill(target, rng)
    _set(target.embed_tokens.embedding, codes.embedding)
    _set(target.lm_head.kernel, codes.head(range(len(codes.last))))
    attention, mlp = target.layers[0].self_attn, target.layers[-1].mlp
    assert isinstance(mlp, MoE)
    _add(mlp.gate.kernel, codes.router(config.n_routed_experts))
    assert isinstance(attention, MLAttention) and config.q_lora_rank
    _find_largest_key(attention, rng, config.q_lora_rank)
    return target


def _find_largest_key(attention: MLAttention, rng: np.random.Generator, q_lora: int) -> None:
    config = attention.config
    heads, half = config.num_attention_heads, config.hidden_size // 2
    # One query for all tokens: the norm behind it leaves a row of the first value but its sign.
    first = np.arange(config.hidden_size) == 0
    _set(attention.q_a_proj.kernel, np.outer(first, rng.normal(size=q_lora)))
    query = rng.normal(size=(q_lora, 1, config.qk_head_dim)) / 4
    _set(attention.q_b_proj.kernel, np.tile(query, (1, heads, 1)).reshape(q_lora, -1))
    _add(attention.kv_a_proj_with_mqa.kernel, np.eye(config.hidden_size, config.latent_dim))
    key = rng.normal(size=(1, config.kv_lora_rank, config.qk_nope_head_dim)) / 8
    _set(attention.kv_b_proj.key_kernel, np.tile(key, (heads, 1, 1)))
    # Each head brings its part of the codes.
    own = np.arange(config.v_head_dim) * heads // half == np.arange(heads)[:, None]
    values = np.eye(config.kv_lora_rank, config.v_head_dim)
    _add(attention.kv_b_proj.value_kernel, values * own[:, None])
    second = np.eye(config.v_head_dim, config.hidden_size, half)
    _add(attention.o_proj.kernel, np.tile(second, (heads, 1)))


def structured_draft(
    target: KimiTarget, codes: Codes, rng: np.random.Generator, config: DraftConfig
) -> Eagle3Draft:
    """In bfloat16, with the target's embedding; its attention finds the row's own token."""
    draft = nnx.eval_shape(lambda: Eagle3Draft(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16))
    _fill(draft, rng)
    count, hidden = len(codes.last), config.hidden_size
    known = range(count - MISTAKEN)
    _set(draft.lm_head.kernel, codes.head([*known, *reversed(range(len(known), count))]))
    _add(draft.fc.kernel, np.tile(np.eye(hidden), (config.num_aux, 1)) / config.num_aux)
    attention = draft.midlayer.self_attn
    assert isinstance(attention, GQAttention)
    heads = config.num_key_value_heads
    groups = config.num_attention_heads // heads
    similar = rng.normal(size=(2 * hidden, heads, config.head_dim)) / math.sqrt(hidden)
    _set(attention.k_proj.kernel, similar.reshape(2 * hidden, -1))
    _set(attention.q_proj.kernel, np.repeat(similar, groups, axis=1).reshape(2 * hidden, -1))
    # The first half of the state makes room for the token's.
    replaced = np.diag(np.where(np.arange(hidden) < hidden // 2, -1.0, 0.0))
    _add(attention.v_proj.kernel, np.concatenate([np.eye(hidden), replaced]))
    out = np.repeat(np.eye(hidden).reshape(heads, config.head_dim, hidden), groups, axis=0)
    _add(attention.o_proj.kernel, out.reshape(-1, hidden) / groups)
    draft.embed_tokens = target.embed_tokens
    return draft


def _fill(model: nnx.Module, rng: np.random.Generator) -> None:
    """Norm weights near 1, matrices of noise."""

    def draw(path: tuple[Any, ...], shape: jax.ShapeDtypeStruct) -> jax.Array:
        noise = rng.normal(size=shape.shape)
        if len(shape.shape) == 1:
            return jnp.asarray(1 + 0.1 * noise, shape.dtype)
        gain = next((g for name, g in GAINS.items() if name in keystr(path)), NOISE)
        return jnp.asarray(gain * noise / math.sqrt(shape.shape[-2]), shape.dtype)

    nnx.update(model, jax.tree.map_with_path(draw, nnx.state(model)))


def _set(parameter: Any, value: np.ndarray) -> None:
    parameter.set_value(jnp.asarray(value, jnp.bfloat16))


def _add(parameter: Any, value: np.ndarray) -> None:
    _set(parameter, np.asarray(parameter.get_value(), np.float32) + value)
