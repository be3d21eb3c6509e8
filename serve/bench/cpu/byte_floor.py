"""The bytes that one decode step must read: what bounds plain decoding of a small batch."""

from dataclasses import dataclass

from eagle3_jax.config import KimiConfig


@dataclass(frozen=True)
class ByteFloor:
    """Bytes one step reads at least, each weight and each cached row once.

    distinct_experts: routed experts a MoE layer reads, on average.
    """

    weight_bytes: int
    kv_bytes: int
    distinct_experts: float

    @property
    def total(self) -> int:
        """All bytes of a step."""
        return self.weight_bytes + self.kv_bytes

    def seconds(self, bandwidth: float) -> float:
        """The least time of a step at `bandwidth` bytes a second."""
        return self.total / bandwidth


def byte_floor(
    config: KimiConfig,
    *,
    batch: int,
    context: float,
    distinct_experts: float | None = None,
    itemsize: int = 4,
) -> ByteFloor:
    """The floor of a step of `batch` sequences with `context` cached tokens each, on average.

    distinct_experts defaults to the bound: every row picks experts of its own, while there are any.
    itemsize: bytes of a weight and of a cached value.
    """
    if distinct_experts is None:
        distinct_experts = min(batch * config.num_experts_per_tok, config.n_routed_experts)
    moe_layers = config.num_hidden_layers - config.first_k_dense_replace
    experts = distinct_experts * moe_layers * expert_parameters(config)
    weights = fixed_parameters(config) + experts + batch * config.hidden_size
    rows = batch * context * config.num_hidden_layers
    return ByteFloor(
        weight_bytes=round(weights * itemsize),
        kv_bytes=round(rows * config.latent_dim * itemsize),
        distinct_experts=float(distinct_experts),
    )


def expert_parameters(config: KimiConfig) -> int:
    """Parameters of one routed expert."""
    return 3 * config.hidden_size * config.moe_intermediate_size


def fixed_parameters(config: KimiConfig) -> int:
    """Parameters every step reads whatever the routing: all but embedding and routed experts."""
    hidden, layers, dense = (
        config.hidden_size,
        config.num_hidden_layers,
        config.first_k_dense_replace,
    )
    attention = _attention_parameters(config)
    dense_mlp = 3 * hidden * config.intermediate_size
    router = (hidden + 1) * config.n_routed_experts
    shared = config.n_shared_experts * expert_parameters(config)
    head = hidden * config.vocab_size
    norms = (2 * layers + 1) * hidden
    return (
        norms + head + layers * attention + dense * dense_mlp + (layers - dense) * (router + shared)
    )


def _attention_parameters(config: KimiConfig) -> int:
    hidden, heads, latent = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    queries = heads * config.qk_head_dim
    if config.q_lora_rank is None:
        query = hidden * queries
    else:
        query = config.q_lora_rank * (hidden + 1 + queries)
    down = hidden * config.latent_dim + latent
    up = latent * heads * (config.qk_nope_head_dim + config.v_head_dim)
    return query + down + up + heads * config.v_head_dim * hidden
