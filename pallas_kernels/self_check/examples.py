"""Arrays in place of shapes: random values, by the type of what holds them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, ShapeDtypeStruct

from pallas_kernels.cache_heads import HeadNorms
from pallas_kernels.logits_argmax import ArgmaxOptions
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.partial_sums import PartialSums
from pallas_kernels.quantized import QuantizedArray, QuantizedRows
from pallas_kernels.quantized.examples import example_kernel

KV_SCALE = 0.25


class Examples:
    """One shape object is one array, wherever it is found; integers are zeros unless their holder
    says what they mean."""

    def __init__(self, seed: int) -> None:
        self._key = jax.random.key(seed)
        self._made: dict[int, Any] = {}
        self._of_type: dict[type, Callable[[Any], Any]] = {
            PagedKV: self._paged,
            QuantizedArray: self._quantized_array,
            QuantizedRows: self._quantized_rows,
            PartialSums: self._partial_sums,
            ArgmaxOptions: self._argmax_options,
            HeadNorms: self._head_norms,
        }

    def of(self, node: Any, *, weights: bool = False) -> Any:
        """The tree with arrays; weights: plain matrices are such that products keep their size."""
        fill = partial(self.of, weights=weights)
        if make := self._of_type.get(type(node)):
            return make(node)
        if isinstance(node, ShapeDtypeStruct):
            return self._once(node, lambda: self._array(node, weights))
        if isinstance(node, Mapping):
            return {name: fill(value) for name, value in node.items()}
        if isinstance(node, tuple):
            values = map(fill, node)
            return type(node)(*values) if hasattr(node, "_fields") else tuple(values)
        return node

    def experts(self, shape: ShapeDtypeStruct, count: int) -> Array:
        """Distinct ids for each token, all equally likely."""
        scores = jax.random.uniform(self._next_key(), (shape.shape[0], count))
        return jax.lax.top_k(scores, shape.shape[1])[1].astype(shape.dtype)

    def places(self, shape: ShapeDtypeStruct, pool: ShapeDtypeStruct) -> tuple[Array, Array]:
        """Distinct pages and offsets in a pool."""
        pages, page_size = pool.shape[:2]
        drawn = jax.random.permutation(self._next_key(), pages * page_size)[: shape.size]
        place = drawn.reshape(shape.shape).astype(shape.dtype)
        return place // page_size, place % page_size

    def _next_key(self) -> Array:
        self._key, key = jax.random.split(self._key)
        return key

    def _once(self, shape: Any, make: Callable[[], Any]) -> Any:
        if id(shape) not in self._made:
            self._made[id(shape)] = make()
        return self._made[id(shape)]

    def _array(self, shape: ShapeDtypeStruct, weights: bool = False) -> Array:
        if not jnp.issubdtype(shape.dtype, jnp.floating):
            return jnp.zeros(shape.shape, shape.dtype)
        if shape.ndim == 0:
            return jnp.full((), KV_SCALE, shape.dtype)
        size = shape.shape[-2] ** -0.5 if weights and shape.ndim > 1 else 1.0
        drawn = jnp.float32 if shape.dtype == jnp.float32 else jnp.bfloat16
        return (size * jax.random.normal(self._next_key(), shape.shape, drawn)).astype(shape.dtype)

    def _quantized_array(self, node: QuantizedArray) -> QuantizedArray:
        def make() -> QuantizedArray:
            *stack, inputs, outputs = node.shape
            made: Any = example_kernel(self._next_key(), inputs, outputs, node.format, *stack)
            return jax.tree.map(lambda x, shape: x.astype(shape.dtype), made, node)

        return self._once(node.values, make)

    def _quantized_rows(self, node: QuantizedRows) -> QuantizedRows:
        def make() -> QuantizedRows:
            scale = jax.random.uniform(self._next_key(), node.scale.shape, minval=0.5, maxval=2.0)
            values: Any = node.values
            return QuantizedRows(self._array(values), scale, node.dtype)

        return self._once(node.values, make)

    def _partial_sums(self, node: PartialSums) -> PartialSums:
        values = self.of(node.values) * node.values.shape[0] ** -0.5
        return PartialSums(values, node.dtype)

    def _paged(self, node: PagedKV) -> PagedKV:
        """All pages of each sequence, in a drawn order; its last rows ask."""
        (batch, pages), (_, rows) = node.page_table.shape, node.positions.shape
        usable = jax.random.permutation(self._next_key(), node.pools[0].shape[0] - 1) + 1
        table = jnp.resize(usable, (batch, pages)).astype(node.page_table.dtype)
        last, ancestors = pages * node.page_size - 1, None
        positions = last - jnp.arange(rows)[::-1]
        if node.ancestors is not None:
            nodes = node.ancestors.shape[2]
            positions = jnp.full(rows, last - nodes)
            ancestors = jnp.broadcast_to(jnp.eye(rows, nodes, dtype=bool), node.ancestors.shape)
        positions = jnp.broadcast_to(positions, (batch, rows)).astype(node.positions.dtype)
        return PagedKV(self.of(node.pools), self.of(node.scales), table, positions, ancestors)

    def _argmax_options(self, node: ArgmaxOptions) -> ArgmaxOptions:
        rows = node.temperature.shape[0]
        return ArgmaxOptions(
            temperature=jnp.where(jnp.arange(rows) % 2 == 0, 1.0, 0.6),
            seed=jax.random.bits(self._next_key(), (rows, 2), jnp.uint32),
            positions=jnp.arange(rows, dtype=node.positions.dtype) * 100,
            min_p=None if node.min_p is None else jnp.full(rows, 0.05),
            bias_ids=self.of(node.bias_ids),
            bias=self.of(node.bias),
        )

    def _head_norms(self, node: HeadNorms) -> HeadNorms:
        q, k, squares, devices = node
        return HeadNorms(self.of(q), self.of(k), 8 + abs(self.of(squares)), devices)
