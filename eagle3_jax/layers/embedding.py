"""Token embedding table."""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.collectives import all_sum, first_column
from eagle3_jax.layers.linear import normal_param
from eagle3_jax.mesh import split_of


class Embedding(nnx.Module):
    """Row lookup by token id. If the vocabulary is split, devices sum one row and zeros."""

    def __init__(self, vocab_size: int, hidden_size: int, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.embedding = normal_param((vocab_size, hidden_size), ("vocab", "embed"), rngs, dtype)

    def __call__(self, token_ids: Int[Array, "*rows"]) -> Float[Array, "*rows hidden"]:
        table, (axes, _) = self.embedding.get_value(), split_of(self.embedding)
        if axes is None:
            return table[token_ids]
        own = token_ids - first_column(table.shape[0], axes)
        held = (own >= 0) & (own < table.shape[0])
        rows = jnp.where(held[..., None], table[jnp.where(held, own, 0)], 0)
        return all_sum(rows, axes)
