"""Linear projections and the embedding table.

Kernels are stored [in, out]: XLA:CPU multiplies 4+ rows 2x faster this way. A quantised kernel
stays [out, in], as in its checkpoint; see `pallas_kernels.quantized`.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.collectives import all_sum, first_column
from eagle3_jax.layers.quantized import QuantizedKernel, kernel_split
from eagle3_jax.mesh import MeshAxes, split_of
from pallas_kernels import look_up, matmul
from pallas_kernels.quantized import Rows

Axes = tuple[str | None, ...]
STD = 0.02
"""Default standard deviation of initial weights, meant for widths of thousands of columns."""


def normal_param(
    shape: tuple[int, ...], axes: Axes, rngs: nnx.Rngs, dtype: DTypeLike, std: float = STD
) -> nnx.Param:
    """Create a parameter drawn from N(0, std^2) that carries its logical axis names."""
    return nnx.Param(std * jax.random.normal(rngs.params(), shape, dtype), axes=axes)


class Linear(nnx.Module):
    """y = x @ kernel, without bias. `kv_heads` is the number of KV heads in the outputs, if any."""

    def __init__(
        self,
        shape: tuple[int, int],
        axes: Axes,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike,
        kv_heads: int | None = None,
    ):
        kernel = normal_param(shape, axes, rngs, dtype)
        if kv_heads is not None:
            kernel.set_metadata(kv_heads=kv_heads)
        self.kernel: nnx.Param | QuantizedKernel = kernel

    @property
    def split(self) -> tuple[MeshAxes | None, ...]:
        """Mesh axes over which inputs and outputs are split; None where they are whole."""
        return kernel_split(self.kernel)

    def __call__(self, x: Rows) -> Float[Array, "*rows outputs"]:
        """Multiply, and sum over devices if the inputs are split. Split outputs stay split."""
        return all_sum(matmul(x, self.kernel.get_value()), self.split[0])


class Embedding(nnx.Module):
    """Row lookup by token id. If the vocabulary is split, devices sum one row and zeros."""

    def __init__(self, vocab_size: int, hidden_size: int, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.embedding = normal_param((vocab_size, hidden_size), ("vocab", "embed"), rngs, dtype)

    def __call__(self, token_ids: Int[Array, "*rows"]) -> Float[Array, "*rows hidden"]:
        table, (axes, _) = self.embedding.get_value(), split_of(self.embedding)
        if axes is None:
            return look_up(table, token_ids)
        own = token_ids - first_column(table.shape[0], axes)
        held = (own >= 0) & (own < table.shape[0])
        rows = jnp.where(held[..., None], look_up(table, jnp.where(held, own, 0)), 0)
        return all_sum(rows, axes)
