"""Recording of the operations that a program calls, with their shapes, in the dispatcher."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np

from pallas_kernels.dispatch import Form, listening

MADE_BY_ROUTE = ("tiles", "rows")
"""Arguments that the router's kernel makes; called without them, a kernel makes them itself."""


@dataclass(frozen=True)
class Call:
    """An operation as a program calls it: arguments and options with shapes in place of arrays.

    kernel: the function, or the reason why it cannot run. reference: the reference implementation.
    An array that is passed twice is one object.
    """

    operation: str
    kernel: Form
    reference: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def shapes(self) -> str:
        """Shapes of the first array and of the two largest others, for reports."""
        leaves = jax.tree.leaves((self.arguments, self.options))
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.ndim]
        named = arrays[:1] + sorted(arrays[1:], key=lambda leaf: -leaf.size)[:2]
        return " ".join(f"{leaf.dtype.name}{list(leaf.shape)}".replace(" ", "") for leaf in named)

    @property
    def argument_bytes(self) -> int:
        leaves = jax.tree.leaves((self.arguments, self.options))
        arrays = {id(x): x for x in leaves if isinstance(x, jax.ShapeDtypeStruct)}
        return sum(prod(x.shape) * x.dtype.itemsize for x in arrays.values())


def recorded_calls(function: Callable[..., Any], *shapes: Any) -> list[Call]:
    """Trace function(*shapes) and return its distinct operation calls in order."""
    found: dict[str, Call] = {}

    def listener(
        operation: str, forms: Mapping[str, Form], chosen: Callable[..., Any]
    ) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            asked = {name: x for name, x in options.items() if name not in MADE_BY_ROUTE}
            shapes = _without_arrays((arguments, asked))
            reference: Any = forms["reference"]
            call = Call(operation, forms["pallas"], reference, *shapes)
            found.setdefault(repr(call), call)
            return chosen(*arguments, **options)

        return called

    with listening(listener):
        # Wrap the function, because JAX would not trace an already traced one again.
        jax.eval_shape(lambda *arrays: function(*arrays), *shapes)
    return list(found.values())


def _without_arrays(tree: Any) -> Any:
    """Replace each array by its shape; identical arrays share one shape object."""
    leaves, structure = jax.tree.flatten(tree)
    shapes: dict[int, jax.ShapeDtypeStruct] = dict(_shapes(leaves))
    return jax.tree.unflatten(structure, [shapes.get(id(leaf), leaf) for leaf in leaves])


def _shapes(leaves: list[Any]) -> Iterator[tuple[int, jax.ShapeDtypeStruct]]:
    for leaf in leaves:
        if isinstance(leaf, jax.Array | np.ndarray):
            yield id(leaf), jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
