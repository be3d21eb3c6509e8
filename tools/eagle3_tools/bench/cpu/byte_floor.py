"""The bytes that one decode step must read, which bound plain decoding of a small batch."""

from dataclasses import dataclass

from convert.fill import named_variables
from eagle3_jax.models.kimi import KimiTarget

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ByteFloor:
    """The fewest bytes one step reads: each weight and each cached row once.

    `distinct_experts` is the mean number of routed experts that a MoE layer reads.
    """

    weight_bytes: int
    kv_bytes: int
    distinct_experts: float

    @property
    def total(self) -> int:
        """All bytes of a step."""
        return self.weight_bytes + self.kv_bytes

    def seconds(self, bandwidth: float) -> float:
        """Return the shortest time of a step at `bandwidth` bytes per second."""
        return self.total / bandwidth


def byte_floor(
    target: KimiTarget, *, batch: int, context: float, distinct_experts: float
) -> ByteFloor:
    """Compute the floor of a step of `batch` sequences with `context` cached tokens on average.

    A step reads all weights except the embedding, of which it reads one row per sequence, and the
    routed experts that no row chose. An abstract target is sufficient.
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
