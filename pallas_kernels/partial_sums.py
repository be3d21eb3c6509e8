"""Split-K products: the kernel that reads such a product adds up its partial sums."""

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
    """A product as float32 partial sums, one for each part of the inputs, added in order.

    dtype (static): the dtype that the sum is rounded to.
    """

    values: Float[Array, "parts *rows outputs"]
    dtype: np.dtype = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the product, [*rows, outputs]."""
        return self.values.shape[1:]


Product = Float[Array, "..."] | PartialSums
"""Rows times a matrix, as an array or as partial sums."""


def total(product: Product) -> Float[Array, "..."]:
    """Return the product as an array, adding partial sums if necessary."""
    if not isinstance(product, PartialSums):
        return product
    return reduce(add, product.values).astype(product.dtype)


def as_product(
    values: Float[Array, "parts flat_rows outputs"], rows: tuple[int, ...], dtype: DTypeLike
) -> Product:
    """Reshape a kernel's result to leading axes `rows`; several parts become `PartialSums`."""
    shaped = values.reshape(len(values), *rows, values.shape[-1])
    return shaped[0] if len(values) == 1 else PartialSums(shaped, jnp.dtype(dtype))


def as_parts(product: Product, *shape: int) -> Float[Array, "..."]:
    """Return the parts [parts, *shape] for a kernel. An ordinary array is a single part."""
    values = product.values if isinstance(product, PartialSums) else product[None]
    return values.reshape(len(values), *shape)


def load_total(
    ref: Any, dtype: DTypeLike, at: tuple[Array, ...], mask: Array
) -> Float[Array, " numbers"]:
    """Load a product inside a kernel: add the parts in `ref`, round to `dtype`, widen to float32.
    Elements where `mask` is false are 0."""
    parts = [
        load(ref.at[(jnp.full_like(at[-1], part), *at)], mask=mask, other=0.0).astype(jnp.float32)
        for part in range(ref.shape[0])
    ]
    return reduce(add, parts).astype(dtype).astype(jnp.float32)
