"""The target: Kimi-K2.5's text model (DeepSeek-V3 architecture), with capture of aux states."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.cache import KVPools, PageView
from eagle3_jax.config import TargetConfig
from eagle3_jax.layers.embedding import Embedding
from eagle3_jax.layers.linear import Linear
from eagle3_jax.layers.mla import MLAttention
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.moe import MoE
from eagle3_jax.layers.norm import RMSNorm
from eagle3_jax.layers.rope import RopeTables, rope_tables
from eagle3_jax.mesh import MeshAxes
from pallas_kernels import add_norm


class KimiLayer(nnx.Module):
    """x += attention(norm(x)); x += mlp(norm(x)); the mlp is dense in the first layers."""

    def __init__(self, config: TargetConfig, layer: int, *, rngs: nnx.Rngs, dtype: DTypeLike):
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype)
        self.self_attn = MLAttention(config.latent_attention, rngs=rngs, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype)
        if config.is_dense(layer):
            self.mlp = MLP(hidden, config.intermediate_size, rngs=rngs, dtype=dtype)
        else:
            self.mlp = MoE(config, rngs=rngs, dtype=dtype)

    def __call__(
        self,
        x: Float[Array, "batch q_len hidden"],
        rope: RopeTables,
        pools: KVPools = (),
        pages: PageView | None = None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        attended, pools = self.self_attn(x, rope, pools, pages, self.input_layernorm)
        x, normed = add_norm(x, attended, self.post_attention_layernorm.norm)
        return x + self.mlp(normed), pools


class KimiTarget(nnx.Module):
    """Embedding, decoder layers, final norm and head; `logits` is separate so that prefill can
    project one row only."""

    def __init__(self, config: TargetConfig, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32):
        self.config = config
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embed_tokens = Embedding(vocab, hidden, rngs=rngs, dtype=dtype)
        self.layers = nnx.List(
            [KimiLayer(config, i, rngs=rngs, dtype=dtype) for i in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(hidden, config.rms_norm_eps, dtype=dtype)
        self.lm_head = Linear((hidden, vocab), ("embed", "vocab"), rngs=rngs, dtype=dtype)

    @property
    def pool_rows(self) -> tuple[tuple[int, ...], ...]:
        """Shape of one position's row in each KV pool, layer after layer."""
        return tuple(row for layer in self.layers for row in layer.self_attn.pool_rows)

    @property
    def pool_splits(self) -> tuple[tuple[MeshAxes | None, ...], ...]:
        """The mesh axes that split each of these rows."""
        return tuple(split for layer in self.layers for split in layer.self_attn.pool_splits)

    @property
    def vocab_axis(self) -> MeshAxes | None:
        """The mesh axes over which logits are split."""
        return self.lm_head.split[1]

    @property
    def units(self) -> dict[str, int]:
        """How many parts that can't be divided each logical axis has."""
        return {
            "heads": self.config.num_attention_heads,
            "mlp": self.config.intermediate_size,
            "expert": self.config.n_routed_experts,
            "expert_mlp": self.config.moe_intermediate_size,
            "vocab": self.config.vocab_size,
        }

    def __call__(
        self,
        token_ids: Int[Array, "batch q_len"],
        positions: Int[Array, "batch q_len"],
        aux_layer_ids: Sequence[int],
        pools: KVPools = (),
        pages: PageView | None = None,
    ) -> tuple[
        Float[Array, "batch q_len hidden"],
        Float[Array, "batch q_len aux"],
        KVPools,
    ]:
        """Runs the layers; returns hidden states (before the final norm), aux states and pools.

        aux is the residual stream before each layer of `aux_layer_ids`, concatenated in that order;
        id num_hidden_layers is the output of the last layer.
        """
        # Layers of one kind are traced once; a new function, because what is traced depends on more
        # than JAX's caches know (pallas_kernels.gpu).
        run = jax.jit(
            lambda graph, state, *inputs: nnx.merge(graph, state)(*inputs), static_argnums=0
        )
        x = self.embed_tokens(token_ids)
        rope = rope_tables(self.config.rope, self.config.qk_rope_head_dim, positions)
        streams: list[Array] = [x]
        written: KVPools = ()
        for i, layer in enumerate(self.layers):
            with jax.named_scope(f"target_layer_{i}"):
                x, layer_pools = run(*nnx.split(layer), x, rope, pools[i : i + 1], pages)
            streams.append(x)
            written += layer_pools
        aux = [streams[i] for i in aux_layer_ids] or [x[..., :0]]
        return x, jnp.concatenate(aux, axis=-1), written

    def logits(self, hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows vocab"]:
        """Final norm and head, in float32."""
        return self.lm_head(self.normed(hidden)).astype(jnp.float32)

    def normed(self, hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """What the head multiplies."""
        return self.norm(hidden)
