"""Sparse experts with a fixed capacity, for training steps.

Rows move to their expert's slots and back by gathers only, also in the backward pass (a scatter-add
is slow on CPU). A choice beyond an expert's capacity is dropped.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.layers.moe import Experts

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
