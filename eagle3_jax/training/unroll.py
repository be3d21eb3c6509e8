"""Training-time test (EAGLE-3, arXiv 2503.01840): the draft run on its own states, in parallel.

At inference a chain starts at some row r: its first output comes from true target features, the
next rows take the draft's own output as their state. Here every row starts a chain at once. Step j
of the chain that started at row i - j stands in row i; it reads the first step's keys up to row
i - j and, after those, the keys of steps 1..j of its own chain.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.layers.rope import rope_tables
from eagle3_jax.models.eagle3 import Eagle3Draft


def unroll(
    draft: Eagle3Draft,
    next_ids: Int[Array, "rows length"],
    aux_hidden: Float[Array, "rows length aux"],
    positions: Int[Array, "rows length"],
    segments: Int[Array, "rows length"],
    num_steps: int,
) -> list[Float[Array, "rows length hidden"]]:
    """Recurrent states of every step, each [rows, length, hidden] (before the final norm).

    Row i of step j has the token after position i and j steps of the draft's own state behind it;
    rows closer than j to the start of their segment mean nothing.
    """
    layer, attention = draft.midlayer, draft.midlayer.self_attn
    rope = rope_tables(draft.config.rope, draft.config.rotary_dim, positions)
    embedded = draft.embed_tokens(next_ids)
    state = draft.fuse(aux_hidden)
    states, keys, values = [], [], []
    for _ in range(num_steps):
        x, residual = layer.enter(embedded, state)
        q, k, v = attention.project(x, rope)
        keys.append(k)
        values.append(v)
        heads = _attend(q * attention.scale, keys, values, segments)
        attended = attention.o_proj(heads.reshape(*state.shape[:2], -1))
        states.append(draft.recurrent(layer.finish(residual + attended)))
        state = jnp.roll(states[-1], 1, axis=1)
    return states


def _attend(
    q: Float[Array, "rows length heads dim"],
    keys: list[Float[Array, "rows length kv_heads dim"]],
    values: list[Float[Array, "rows length kv_heads v_dim"]],
    segments: Int[Array, "rows length"],
) -> Float[Array, "rows length heads v_dim"]:
    """Attention of the latest step over the first step's rows and its own chain's diagonal."""
    step, groups = len(keys) - 1, q.shape[2] // keys[0].shape[2]
    keys, values = ([jnp.repeat(x, groups, axis=2) for x in kv] for kv in (keys, values))
    same = segments[:, :, None] == segments[:, None, :]
    visible = same & jnp.tril(jnp.ones(same.shape[-2:], bool), -step)
    first = jnp.einsum("bqhd,bshd->bhqs", q, keys[0])
    scores = [jnp.where(visible[:, None], first, -1e30)]
    chain_values = []
    for j in range(1, step + 1):
        k, v = (jnp.roll(x[j], step - j, axis=1) for x in (keys, values))
        scores.append(jnp.einsum("bqhd,bqhd->bhq", q, k)[..., None])
        chain_values.append(v)
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
    length = q.shape[1]
    out = jnp.einsum("bhqs,bshd->bqhd", weights[..., :length], values[0])
    for j, v in enumerate(chain_values):
        out += weights[..., length + j].swapaxes(1, 2)[..., None] * v
    return out
