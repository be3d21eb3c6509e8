"""Products whose inputs were split: their parts are added by the kernel that reads them."""

from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels.triton import load


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PartialSums:
    """What each part of the inputs adds to a product, float32; always summed in their order.

    dtype, static: what the sum is rounded to.
    """

    values: Float[Array, "parts *rows outputs"]
    dtype: np.dtype = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """[*rows, outputs]."""
        return self.values.shape[1:]


Product = Float[Array, "..."] | PartialSums
"""Of rows with a matrix, added up or not yet."""


def total(product: Product) -> Float[Array, "..."]:
    """The product itself."""
    if not isinstance(product, PartialSums):
        return product
    return reduce(add, product.values).astype(product.dtype)


def as_product(
    values: Float[Array, "parts flat_rows outputs"], rows: tuple[int, ...], dtype: DTypeLike
) -> Product:
    """What a kernel left, with these leading axes: one part is the product."""
    shaped = values.reshape(len(values), *rows, values.shape[-1])
    return shaped[0] if len(values) == 1 else PartialSums(shaped, jnp.dtype(dtype))


def as_parts(product: Product, *shape: int) -> Float[Array, "..."]:
    """[parts, *shape] as kernels take it; a product that is added up is its only part."""
    values = product.values if isinstance(product, PartialSums) else product[None]
    return values.reshape(len(values), *shape)


def load_total(
    ref: Any, dtype: DTypeLike, at: tuple[Array, ...], mask: Array
) -> Float[Array, " numbers"]:
    """Inside a kernel: numbers of a product, of which ref has the parts, as float32 after they were
    rounded to dtype; zeros where the mask is false."""
    parts = [
        load(ref.at[(jnp.full_like(at[-1], part), *at)], mask=mask, other=0.0).astype(jnp.float32)
        for part in range(ref.shape[0])
    ]
    return reduce(add, parts).astype(dtype).astype(jnp.float32)
