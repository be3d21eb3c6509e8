"""The EAGLE-3 draft (arXiv 2503.01840): one decoder layer on [token embedding, state].

The state is `fc` of the target's aux hidden states where those are known, and the draft's own
output (before the final norm) where they are not yet.
"""

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.cache import PageView
from eagle3_jax.config import DraftConfig
from eagle3_jax.layers.embedding import Embedding
from eagle3_jax.layers.gqa import GQAttention, KVPools
from eagle3_jax.layers.linear import Linear
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.norm import RMSNorm
from eagle3_jax.layers.rope import RopeTables, rope_tables


class IdMap(nnx.Variable):
    """Integer table loaded with the weights and never trained."""


class DraftLayer(nnx.Module):
    """`midlayer`: attention over the concatenation of normed embedding and normed state."""

    def __init__(self, config: DraftConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype)
        self.hidden_norm = RMSNorm(hidden, eps, dtype=dtype)
        self.self_attn = GQAttention(
            2 * hidden,
            hidden,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            rngs=rngs,
            dtype=dtype,
        )
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype)
        self.mlp = MLP(hidden, config.intermediate_size, rngs=rngs, dtype=dtype)

    def __call__(
        self,
        embedded: Float[Array, "batch q_len hidden"],
        state: Float[Array, "batch q_len hidden"],
        rope: RopeTables,
        pools: KVPools,
        pages: PageView | None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        x = self.attention_input(embedded, state)
        attended, pools = self.self_attn(x, rope, pools, pages)
        return self.finish(state + attended), pools

    def attention_input(
        self,
        embedded: Float[Array, "batch q_len hidden"],
        state: Float[Array, "batch q_len hidden"],
    ) -> Float[Array, "batch q_len twice"]:
        """Embedding first, then state, each with its own norm."""
        parts = [self.input_layernorm(embedded), self.hidden_norm(state)]
        return jnp.concatenate(parts, axis=-1)

    def finish(
        self, residual: Float[Array, "batch q_len hidden"]
    ) -> Float[Array, "batch q_len hidden"]:
        """The feed-forward half of the layer."""
        return residual + self.mlp(self.post_attention_layernorm(residual))


class Eagle3Draft(nnx.Module):
    """Embedding and head may be the target's own modules, given by the caller."""

    def __init__(
        self,
        config: DraftConfig,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        embed_tokens: Embedding | None = None,
        lm_head: Linear | None = None,
    ):
        self.config = config
        hidden, draft_vocab = config.hidden_size, config.draft_vocab_size
        self.embed_tokens = embed_tokens or Embedding(
            config.vocab_size, hidden, rngs=rngs, dtype=dtype
        )
        fc_shape = (config.num_aux * config.target_hidden_size, hidden)
        self.fc = Linear(fc_shape, (None, "embed"), rngs=rngs, dtype=dtype)
        self.midlayer = DraftLayer(config, rngs=rngs, dtype=dtype)
        self.norm = RMSNorm(hidden, config.rms_norm_eps, dtype=dtype)
        self.lm_head = lm_head or Linear(
            (hidden, draft_vocab), ("embed", "vocab"), rngs=rngs, dtype=dtype
        )
        if draft_vocab < config.vocab_size:
            self.d2t = IdMap(jnp.zeros((draft_vocab,), jnp.int32))

    def __call__(
        self,
        token_ids: Int[Array, "batch q_len"],
        state: Float[Array, "batch q_len hidden"],
        positions: Int[Array, "batch q_len"],
        pools: KVPools = (),
        pages: PageView | None = None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        """One pass of the layer; row i pairs token i+1 with the state of position i.

        Returns the new recurrent state (before the final norm) and the pools.
        """
        rope = rope_tables(self.config.rope, self.config.head_dim, positions)
        return self.midlayer(self.embed_tokens(token_ids), state, rope, pools, pages)

    def fuse(self, aux_hidden: Float[Array, "*rows aux"]) -> Float[Array, "*rows hidden"]:
        """The state of a position whose target features are known."""
        return self.fc(aux_hidden)

    def logits(self, state: Float[Array, "*rows hidden"]) -> Float[Array, "*rows draft_vocab"]:
        """Final norm and head, in float32, over the draft's own vocabulary."""
        return self.lm_head(self.norm(state)).astype(jnp.float32)

    @property
    def target_ids(self) -> Int[Array, " draft_vocab"] | None:
        """Target id of each draft id, or None when both vocabularies are one."""
        if self.config.draft_vocab_size == self.config.vocab_size:
            return None
        return jnp.arange(self.config.draft_vocab_size) + self.d2t.get_value()
