"""SwiGLU feed-forward block."""

import jax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.layers.linear import Linear


class MLP(nnx.Module):
    """down(silu(gate x) * up x)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, *, rngs: nnx.Rngs, dtype: DTypeLike
    ):
        wide, narrow = (hidden_size, intermediate_size), (intermediate_size, hidden_size)
        self.gate_proj = Linear(wide, ("embed", "mlp"), rngs=rngs, dtype=dtype)
        self.up_proj = Linear(wide, ("embed", "mlp"), rngs=rngs, dtype=dtype)
        self.down_proj = Linear(narrow, ("mlp", "embed"), rngs=rngs, dtype=dtype)

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))
