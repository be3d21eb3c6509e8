"""The bytes that one decode step must read: what bounds plain decoding of a small batch."""

from dataclasses import dataclass

from convert.fill import named_variables
from eagle3_jax.models.kimi import KimiTarget

FLOAT32_BYTES = 4


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
    target: KimiTarget, *, batch: int, context: float, distinct_experts: float
) -> ByteFloor:
    """The floor of a step of `batch` sequences with `context` cached tokens each, on average.

    Every step reads all weights but those of the embedding, of which it reads a row a sequence, and
    of the routed experts that no row chose. An abstract target will do.
    """
    config = target.config
    sizes = {path: one.get_value().size for path, one in named_variables(target).items()}
    routed = sum(size for path, size in sizes.items() if ".experts." in path)
    fixed = sum(sizes.values()) - routed - sizes["embed_tokens.embedding"]
    experts = routed * distinct_experts / config.n_routed_experts
    rows = batch * context * config.num_hidden_layers
    return ByteFloor(
        weight_bytes=round((fixed + experts + batch * config.hidden_size) * FLOAT32_BYTES),
        kv_bytes=round(rows * config.latent_dim * FLOAT32_BYTES),
        distinct_experts=float(distinct_experts),
    )
