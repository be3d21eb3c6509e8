"""A differentiable pass of the target over packed rows, through the model's own modules.

It differs from serving in two places only. Attention stays within a segment, and experts have a
fixed capacity: a choice beyond it is dropped. Rows move to their expert's slots and back by gathers
only, also in the backward pass (a scatter-add is slow on CPU).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.layers.moe import Experts, MoE
from eagle3_jax.layers.rope import RopeTables
from eagle3_jax.models.target import Attention, Target
from eagle3_jax.training.packing import PackedBatch

CAPACITY = 1.5  # slots per expert relative to an even load


def routed_experts(
    experts: Experts,
    x: Float[Array, "tokens hidden"],
    expert_ids: Int[Array, "tokens chosen"],
    weights: Float[Array, "tokens chosen"],
) -> Float[Array, "tokens hidden"]:
    """Return the weighted sum of each token's chosen experts, without dropped choices."""
    kernels = (experts.gate_proj, experts.up_proj, experts.down_proj)
    gate, up, down = (kernel.get_value() for kernel in kernels)
    tokens, chosen = expert_ids.shape
    num_experts = gate.shape[0]
    capacity = min(int(CAPACITY * tokens * chosen / num_experts) + 1, tokens)
    slot, choice = _slots(expert_ids.reshape(-1), num_experts, capacity)
    rows = _move(jnp.repeat(x, chosen, axis=0), choice, slot).reshape(num_experts, capacity, -1)
    inner = jax.nn.silu(jnp.einsum("ech,ehi->eci", rows, gate))
    inner = inner * jnp.einsum("ech,ehi->eci", rows, up)
    out = jnp.einsum("eci,eih->ech", inner, down).reshape(num_experts * capacity, -1)
    back = _move(out, slot, choice).reshape(tokens, chosen, -1)
    return jnp.einsum("tk,tkh->th", weights, back)


def _slots(
    expert_ids: Int[Array, " choices"], num_experts: int, capacity: int
) -> tuple[Int[Array, " choices"], Int[Array, " slots"]]:
    """Return the slot of each choice and the choice in each slot; out of range if there is none."""
    mine = jax.nn.one_hot(expert_ids, num_experts, dtype=jnp.int32)
    rank = jnp.sum((jnp.cumsum(mine, axis=0) - 1) * mine, axis=1)
    num_slots = num_experts * capacity
    slot = jnp.where(rank < capacity, expert_ids * capacity + rank, num_slots)
    empty = jnp.full((num_slots,), len(expert_ids))
    return slot, empty.at[slot].set(jnp.arange(len(expert_ids)), mode="drop")


@jax.custom_vjp
def _move(
    x: Float[Array, "source hidden"], there: Int[Array, " moved"], back: Int[Array, " source"]
) -> Float[Array, "moved hidden"]:
    """Return x[there], zero where out of range; `back` is the inverse map for the backward pass."""
    return x.at[there].get(mode="fill", fill_value=0)


def _move_forward(x, there, back):
    return _move(x, there, back), (there, back)


def _move_backward(maps, gradient):
    there, back = maps
    return _move(gradient, back, there), None, None


_move.defvjp(_move_forward, _move_backward)


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
