"""Training-time test (EAGLE-3, arXiv 2503.01840): the draft run on its own states, in parallel.

At inference a chain starts at some row r. Its first output comes from true target features, and
later rows take the draft's own output as their state. In training every row starts a chain at once.
Step j of the chain that started at row i - j is in row i. It reads the first step's keys up to row
i - j and then the keys of steps 1..j of its own chain.

Unless all activations are kept, the backward pass reruns each step, and its attention block by
block. Only the steps' states, keys and values are kept, and no array has length x length elements.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.layers.rope import RopeTables, rope_tables
from eagle3_jax.models.eagle3 import Eagle3Draft

QUERY_BLOCK = 128
"""Rows whose scores over all keys are in memory together: 0.7 GB for 64 heads at 20K tokens."""


class Step(NamedTuple):
    """Recurrent state (before the final norm), keys and values of one step."""

    state: Float[Array, "rows length hidden"]
    keys: Float[Array, "rows length kv_heads dim"]
    values: Float[Array, "rows length kv_heads v_dim"]


def unroll(
    draft: Eagle3Draft,
    next_ids: Int[Array, "rows length"],
    aux_hidden: Float[Array, "rows length aux"],
    positions: Int[Array, "rows length"],
    segments: Int[Array, "rows length"],
    num_steps: int,
    *,
    keep_activations: bool = False,
) -> list[Float[Array, "rows length hidden"]]:
    """Return recurrent states of every step, each [rows, length, hidden], before the final norm.

    Row i of step j has the token after position i and j steps of the draft's own states before it.
    Rows closer than j to the start of their segment are arbitrary. With `keep_activations` nothing
    is recomputed, and memory holds everything, including scores of length x length.
    """
    again = _once if keep_activations else jax.checkpoint
    rope = rope_tables(draft.config.rope, draft.config.rotary_dim, positions)
    embedded = draft.embed(next_ids)
    state = draft.fuse(aux_hidden)
    steps: list[Step] = []
    for _ in range(num_steps):
        advance = again(partial(_step, again, draft, embedded, rope, segments))
        steps.append(advance(state, steps))
        state = jnp.roll(steps[-1].state, 1, axis=1)
    return [step.state for step in steps]


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Stand-in for `jax.checkpoint` that does not recompute."""
    return function


def _step(
    again: Callable[..., Any],
    draft: Eagle3Draft,
    embedded: Float[Array, "rows length hidden"],
    rope: RopeTables,
    segments: Int[Array, "rows length"],
    state: Float[Array, "rows length hidden"],
    before: list[Step],
) -> Step:
    layer, attention = draft.midlayer, draft.midlayer.self_attn
    x, residual = layer.enter(embedded, state.astype(embedded.dtype))
    q, k, v = attention.project(x, rope)
    keys, values = [*(s.keys for s in before), k], [*(s.values for s in before), v]
    heads = _attend(again, q * attention.scale, keys, values, segments)
    attended = attention.o_proj(heads.reshape(*state.shape[:2], -1).astype(x.dtype))
    return Step(draft.recurrent(layer.finish(residual + attended)), k, v)


def _attend(
    again: Callable[..., Any],
    q: Float[Array, "rows length heads dim"],
    keys: list[Float[Array, "rows length kv_heads dim"]],
    values: list[Float[Array, "rows length kv_heads v_dim"]],
    segments: Int[Array, "rows length"],
) -> Float[Array, "rows length heads v_dim"]:
    """Attend from the latest step to the first step's rows and its own chain's diagonal."""
    step, length, kv_heads = len(keys) - 1, q.shape[1], keys[0].shape[2]
    chain = [
        jnp.stack([jnp.roll(x[j], step - j, axis=1) for j in range(1, step + 1)], axis=2)
        if step
        else jnp.zeros((*x[0].shape[:2], 0, *x[0].shape[2:]), x[0].dtype)
        for x in (keys, values)
    ]
    grouped = q.reshape(*q.shape[:2], kv_heads, -1, q.shape[-1])
    size = min(QUERY_BLOCK, length)
    indices = jnp.arange(length)[None]
    blocks = [_in_blocks(x, size) for x in (grouped, segments, indices, *chain)]
    first = keys[0], values[0], segments
    out = jax.lax.map(again(partial(_attend_block, step, first)), tuple(blocks))
    out = jnp.moveaxis(out, 0, 1).reshape(len(q), -1, q.shape[2], values[0].shape[-1])
    return out[:, :length]


def _in_blocks(x: Array, size: int) -> Float[Array, "blocks rows size *rest"]:
    """Split rows into blocks of `size` positions, padded at the end."""
    blocks = -(-x.shape[1] // size)
    padded = jnp.pad(x, ((0, 0), (0, blocks * size - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
    return jnp.moveaxis(padded.reshape(len(x), blocks, size, *x.shape[2:]), 1, 0)


def _attend_block(
    step: int,
    first: tuple[Array, Array, Int[Array, "rows length"]],
    block: tuple[Array, ...],
) -> Float[Array, "rows size kv_heads groups v_dim"]:
    """Attend from one block's queries to keys up to `step` rows back and to their chains."""
    keys, values, segments = first
    q, own_segments, indices, chain_keys, chain_values = block
    same = own_segments[:, :, None] == segments[:, None, :]
    visible = same & (jnp.arange(segments.shape[1]) <= indices[0][:, None] - step)
    numbers = jnp.float32
    scores = jnp.einsum("rqkgd,rskd->rkgqs", q, keys, preferred_element_type=numbers)
    scores = jnp.where(visible[:, None, None], scores, -1e30)
    own = jnp.einsum("rqkgd,rqjkd->rkgqj", q, chain_keys, preferred_element_type=numbers)
    weights = jax.nn.softmax(jnp.concatenate([scores, own], axis=-1), axis=-1)
    weights = weights.astype(values.dtype)
    seen, chained = jnp.split(weights, [segments.shape[1]], axis=-1)
    out = jnp.einsum("rkgqs,rskd->rqkgd", seen, values)
    return out + jnp.einsum("rkgqj,rqjkd->rqkgd", chained, chain_values)
