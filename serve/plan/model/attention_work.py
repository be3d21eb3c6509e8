"""What attention is to a device: its products, and the reading of the cache between them."""

from dataclasses import dataclass

from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.mla import MLAttention
from serve.plan.model.kernels import Kernel
from serve.plan.model.products import Device, Product


@dataclass(frozen=True)
class StepRows:
    """A batch of sequences, q_len rows of each, over so many tokens of context.

    kv_itemsize: bytes of a number in the KV pools.
    """

    batch: int
    q_len: int
    context: float
    kv_itemsize: int

    @property
    def count(self) -> int:
        """Rows of a product."""
        return self.batch * self.q_len


@dataclass(frozen=True)
class Latents:
    """Latent attention on a device: heads there, width of a cached row, of it the values."""

    heads: int
    row: int
    values: int

    def work(self, part: str, rows: StepRows, times: int) -> Kernel:
        """Every row reads its sequence's cache once; absorbed queries are as wide as the row."""
        nbytes = rows.batch * rows.context * self.row * rows.kv_itemsize
        flop = 2 * rows.count * self.heads * rows.context * (self.row + self.values)
        return Kernel(part, "attention", nbytes, flop, times=times)


@dataclass(frozen=True)
class Heads:
    """Grouped attention on a device: query heads, and numbers of a cached row, keys and values."""

    heads: int
    head_dim: int
    row: int

    def work(self, part: str, rows: StepRows, times: int) -> Kernel:
        """Every row reads its sequence's keys and values once."""
        nbytes = rows.batch * rows.context * self.row * rows.kv_itemsize
        flop = 2 * rows.count * self.heads * rows.context * 2 * self.head_dim
        return Kernel(part, "attention", nbytes, flop, times=times)


def attention_core(
    attention: MLAttention | GQAttention, heads: int, devices: int
) -> Heads | Latents:
    """Of a layer with so many query heads, over so many devices."""
    if isinstance(attention, GQAttention):
        row = 2 * attention.kv_heads // devices * attention.head_dim
        return Heads(heads // devices, attention.head_dim, row)
    config = attention.config
    return Latents(heads // devices, config.latent_dim, config.kv_lora_rank)


def attention_products(device: Device, attention: MLAttention | GQAttention) -> tuple[Product, ...]:
    """Grouped: queries, keys and values together, and out. Latent: down, queries up, absorption of
    keys, of values, and out."""
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
