"""Work of attention on a device: its products, and reading the cache between them."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.mla import MLAttention
from eagle3_tools.plan.model.kernels import Exchange, Kernel, Work
from eagle3_tools.plan.model.products import Device, Product
from pallas_kernels.paged.partial import MASS

ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class StepRows:
    """A batch of sequences with q_len rows each and `context` tokens of context.

    kv_itemsize: bytes of a number in the KV pools.
    """

    batch: int
    q_len: int
    context: float
    kv_itemsize: int

    @property
    def count(self) -> int:
        return self.batch * self.q_len


@dataclass(frozen=True)
class AttentionCore:
    """Attention on a device. heads: query heads on the device. row: numbers of a cached row;
    multiplied: numbers that one head multiplies with its query and weights. context_parts: devices
    that split a context."""

    heads: int
    row: int
    multiplied: int
    context_parts: int = 1

    @classmethod
    def of(
        cls, attention: MLAttention | GQAttention, heads: int, devices: int, context_parts: int
    ) -> "AttentionCore":
        """Describe a layer with `heads` query heads on `devices` devices. Grouped: a head has its
        own keys and values, which split the cache. Latent: absorbed queries are as wide as the row,
        which also has the values."""
        if isinstance(attention, GQAttention):
            row = 2 * max(1, attention.kv_heads // devices) * attention.head_dim
            return cls(heads // devices, row, 2 * attention.head_dim)
        row, values = attention.config.latent_dim, attention.config.kv_lora_rank
        return cls(heads // devices, row, row + values, context_parts if devices > 1 else 1)

    def work(self, part: str, rows: StepRows, times: int) -> Iterator[Work]:
        """Yield the work of a step; every row reads its sequence's cache once.

        If devices split contexts, each receives the queries of all of them, and partial attention
        returns to the heads' devices. A device's own queries and results are not counted, so that
        those of the others are the cost of splitting.
        """
        others = self.context_parts - 1
        context = rows.context / self.context_parts
        each = ACTIVATION_BYTES * rows.count * self.heads
        queries, shares = each * self.row, each * (self.multiplied - self.row + MASS)
        nbytes = rows.batch * context * self.row * rows.kv_itemsize + others * (queries + shares)
        flop = 2 * rows.count * self.heads * rows.context * self.multiplied
        yield Kernel(part, "attention", nbytes, flop, times=times)
        if others:
            yield Exchange(queries, self.context_parts, times, "gather of queries")
            yield Exchange(shares, self.context_parts, times, "exchange of shares")
            yield Kernel("join of shares", "small", self.context_parts * shares, times=times)


def attention_products(device: Device, attention: MLAttention | GQAttention) -> tuple[Product, ...]:
    """Return the products. Grouped: queries, keys and values together, and out. Latent: down,
    queries up, absorption of keys, of values, and out."""
    if isinstance(attention, GQAttention):
        joined = attention.q_proj.kernel, attention.k_proj.kernel, attention.v_proj.kernel
        return device.product(*joined), device.product(attention.o_proj.kernel)
    down = [attention.kv_a_proj_with_mqa.kernel]
    low_rank = attention.config.q_lora_rank is not None
    queries = attention.q_b_proj if low_rank else attention.q_proj
    if low_rank:
        down = [attention.q_a_proj.kernel, *down]
    up = attention.kv_b_proj
    launches = (down, [queries.kernel], [up.key_kernel], [up.value_kernel])
    return tuple(device.product(*one) for one in (*launches, [attention.o_proj.kernel]))
