"""Grouped-query attention with rotary positions: the attention of Llama-style drafts."""

from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.cache import KVPools, PageView, rows_and_scale, write_rows
from eagle3_jax.layers.attention import causal_attention
from eagle3_jax.layers.linear import Linear
from eagle3_jax.layers.norm import RMSNorm, norm_heads
from eagle3_jax.layers.rope import RopeTables, rotate_halves
from eagle3_jax.mesh import MeshAxes
from pallas_kernels import gqa_decode, joint_matmul
from pallas_kernels.paged_rows import contain_spoiled


class GQAttention(nnx.Module):
    """Attention with KV heads shared by groups of query heads; EAGLE-3 feeds [embedding, state]."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qk_norm_eps: float | None = None,
        rngs: nnx.Rngs,
        dtype: DTypeLike,
    ):
        """qk_norm_eps: of norms over all queries and all keys of a token, if there are some."""

        def linear(shape: tuple[int, int], axes: tuple[str | None, str | None]) -> Linear:
            return Linear(shape, axes, rngs=rngs, dtype=dtype)

        self.q_proj = linear((input_size, heads * head_dim), ("embed", "heads"))
        self.k_proj = linear((input_size, kv_heads * head_dim), ("embed", "kv_heads"))
        self.v_proj = linear((input_size, kv_heads * head_dim), ("embed", "kv_heads"))
        self.o_proj = linear((heads * head_dim, hidden_size), ("heads", "embed"))
        if qk_norm_eps is not None:
            sizes = {"heads": heads * head_dim, "kv_heads": kv_heads * head_dim}
            self.q_norm, self.k_norm = (
                RMSNorm(size, qk_norm_eps, axis=axis, dtype=dtype) for axis, size in sizes.items()
            )
        self.has_qk_norm = qk_norm_eps is not None
        self.kv_heads, self.head_dim = kv_heads, head_dim

    @property
    def pool_rows(self) -> tuple[tuple[int, ...], ...]:
        """Shape of one position's row in each KV pool: keys, then values."""
        return ((self.kv_heads, self.head_dim),) * 2

    @property
    def pool_splits(self) -> tuple[tuple[MeshAxes | None, ...], ...]:
        """The mesh axes that split such a row."""
        return ((self.k_proj.split[1], None),) * 2

    @property
    def scale(self) -> float:
        """What scores are multiplied with."""
        return self.head_dim**-0.5

    def __call__(
        self,
        x: Float[Array, "batch q_len inputs"],
        rope: RopeTables,
        pools: KVPools = (),
        pages: PageView | None = None,
        norm: RMSNorm | None = None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        """Attends causally; with pools of keys and values, writes the rows there and reads them.
        With a norm, of the normed x."""
        q, k, v = self.project(x, rope, norm)
        if not pools or pages is None:
            heads = causal_attention(q, k, v, self.scale)
        else:
            rows = (k, contain_spoiled(k, v))
            pools = tuple(write_rows(*pair, pages) for pair in zip(pools, rows, strict=True))
            (keys, k_scale), (values, v_scale) = map(rows_and_scale, pools)
            heads = gqa_decode(
                q,
                keys,
                values,
                pages.page_table,
                pages.positions,
                scale=self.scale,
                ancestors=pages.ancestors,
                k_scale=k_scale,
                v_scale=v_scale,
            )
        return self.o_proj(heads.reshape(*x.shape[:2], -1)), pools

    def project(
        self,
        x: Float[Array, "batch q_len inputs"],
        rope: RopeTables,
        norm: RMSNorm | None = None,
    ) -> tuple[
        Float[Array, "batch q_len heads head_dim"],
        Float[Array, "batch q_len kv_heads head_dim"],
        Float[Array, "batch q_len kv_heads head_dim"],
    ]:
        """Rotated queries and keys, and values."""
        kernels = (linear.kernel.get_value() for linear in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = joint_matmul(x, *kernels, norm=norm and norm.norm)
        if self.has_qk_norm:
            q, k = norm_heads(self.q_norm, self.k_norm, q, k)
        q, k, v = (rows.reshape(*x.shape[:2], -1, self.head_dim) for rows in (q, k, v))
        return rotate_halves(q, rope), rotate_halves(k, rope), v
