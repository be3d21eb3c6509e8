"""Token embedding table."""

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.layers.linear import normal_param


class Embedding(nnx.Module):
    """Row lookup by token id."""

    def __init__(self, vocab_size: int, hidden_size: int, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.embedding = normal_param((vocab_size, hidden_size), ("vocab", "embed"), rngs, dtype)

    def __call__(self, token_ids: Int[Array, "*rows"]) -> Float[Array, "*rows hidden"]:
        return self.embedding.get_value()[token_ids]
