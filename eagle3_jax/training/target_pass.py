"""A differentiable pass of the target over packed rows, through the model's own modules.

It differs from serving in two places only: attention stays within a segment, and experts have a
fixed capacity.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.layers.moe import MoE
from eagle3_jax.layers.rope import RopeTables
from eagle3_jax.models.target import Attention, Target
from eagle3_jax.training.dispatch import routed_experts
from eagle3_jax.training.packing import PackedBatch


class PassOutput(NamedTuple):
    """Last hidden states, residual streams before every layer, and loads per expert and layer."""

    hidden: Float[Array, "rows length hidden"]
    streams: tuple[Float[Array, "rows length hidden"], ...]
    loads: Float[Array, "moe_layers experts"]


def target_pass(target: Target, batch: PackedBatch) -> PassOutput:
    """Run the layers over a packed batch; values in padding rows are arbitrary."""
    positions, segments = jnp.asarray(batch.positions), jnp.asarray(batch.segments)
    rope = target.rope(positions)
    visible = visibility(segments)
    images = None if batch.image_rows is None else jnp.asarray(batch.image_rows)
    x = target.embed(jnp.asarray(batch.token_ids), images)
    streams, loads = [x], []
    for layer in target.layers:
        x = x + _attend(layer.self_attn, layer.input_layernorm(x), rope, visible)
        normed = layer.post_attention_layernorm(x)
        if isinstance(layer.mlp, MoE):
            out, load = _experts(layer.mlp, normed, segments > 0)
            loads.append(load)
        else:
            out = layer.mlp(normed)
        x = x + out
        streams.append(x)
    return PassOutput(x, tuple(streams), jnp.stack(loads))


def visibility(segments: Int[Array, "rows length"]) -> Bool[Array, "rows length length"]:
    """Return True where query row i may read key row j: not later and of the same segment."""
    same = segments[:, :, None] == segments[:, None, :]
    return same & jnp.tril(jnp.ones(same.shape[-2:], bool))


def _attend(
    attention: Attention,
    x: Float[Array, "rows length hidden"],
    rope: RopeTables,
    visible: Bool[Array, "rows length length"],
) -> Float[Array, "rows length hidden"]:
    q, *kv = attention.project(x, rope)
    keys, values = (jnp.repeat(part, q.shape[2] // part.shape[2], axis=2) for part in kv)
    scores = jnp.einsum("bqhd,bshd->bhqs", q, keys) * attention.scale
    scores = jnp.where(visible[:, None], scores, -1e30)
    heads = jnp.einsum("bhqs,bshd->bqhd", jax.nn.softmax(scores, axis=-1), values)
    return attention.o_proj(heads.reshape(*x.shape[:2], -1))


def _experts(
    moe: MoE, x: Float[Array, "rows length hidden"], real: Bool[Array, "rows length"]
) -> tuple[Float[Array, "rows length hidden"], Float[Array, " experts"]]:
    tokens = x.reshape(-1, x.shape[-1])
    expert_ids, weights = moe.gate(tokens)
    routed = routed_experts(moe.experts, tokens, expert_ids, weights)
    chosen = jax.nn.one_hot(expert_ids, moe.gate.config.n_routed_experts)
    load = jnp.sum(chosen * real.reshape(-1)[:, None, None], axis=(0, 1))
    routed = routed.reshape(x.shape)
    return routed if moe.shared_experts is None else routed + moe.shared_experts(x), load
