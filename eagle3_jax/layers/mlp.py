"""SwiGLU feed-forward block."""

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.layers.linear import Linear
from eagle3_jax.layers.norm import RMSNorm
from pallas_kernels import GatedKernels, gated_matmul


class MLP(nnx.Module):
    """SwiGLU MLP: down(silu(gate x) * up x)."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, *, rngs: nnx.Rngs, dtype: DTypeLike
    ):
        wide, narrow = (hidden_size, intermediate_size), (intermediate_size, hidden_size)
        self.gate_proj = Linear(wide, ("embed", "mlp"), rngs=rngs, dtype=dtype)
        self.up_proj = Linear(wide, ("embed", "mlp"), rngs=rngs, dtype=dtype)
        self.down_proj = Linear(narrow, ("mlp", "embed"), rngs=rngs, dtype=dtype)

    @property
    def kernels(self) -> GatedKernels:
        linears = self.gate_proj, self.up_proj, self.down_proj
        return GatedKernels(*(linear.kernel.get_value() for linear in linears))

    def __call__(
        self, x: Float[Array, "*rows hidden"], norm: RMSNorm | None = None
    ) -> Float[Array, "*rows hidden"]:
        gate, up, _ = self.kernels
        return self.down_proj(gated_matmul(x, gate, up, norm=norm and norm.norm))
