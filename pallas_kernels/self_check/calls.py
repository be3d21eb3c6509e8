"""Which operations a program calls, with which shapes: recorded where dispatch chooses."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import numpy as np

from pallas_kernels.dispatch import Form, listening


@dataclass(frozen=True)
class Call:
    """One operation as a program calls it: arguments and options with shapes in place of arrays.

    kernel: the function, or why it cannot run; reference: its contract. What either has bound
    beforehand are shapes too; one array that several of them take is one object.
    """

    operation: str
    kernel: Form
    reference: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @property
    def shapes(self) -> str:
        """Of the first array among the arguments and the two largest others, as reports name it."""
        leaves = jax.tree.leaves((self.arguments, self.options))
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.ndim]
        named = arrays[:1] + sorted(arrays[1:], key=lambda leaf: -leaf.size)[:2]
        return " ".join(f"{leaf.dtype.name}{list(leaf.shape)}".replace(" ", "") for leaf in named)

    @property
    def argument_bytes(self) -> int:
        """Of all arrays."""
        leaves = jax.tree.leaves((self.arguments, self.options, bound_to(self.reference)))
        arrays = {id(x): x for x in leaves if isinstance(x, jax.ShapeDtypeStruct)}
        return sum(prod(x.shape) * x.dtype.itemsize for x in arrays.values())


def recorded_calls(function: Callable[..., Any], *shapes: Any) -> list[Call]:
    """Every different call of an operation that tracing function(*shapes) makes, in its order."""
    found: dict[str, Call] = {}

    def listener(
        operation: str, forms: Mapping[str, Form], chosen: Callable[..., Any]
    ) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            call = _call(operation, forms, arguments, options)
            found.setdefault(repr(call), call)
            return chosen(*arguments, **options)

        return called

    with listening(listener):
        # A function of its own: what was traced before would not be traced again.
        jax.eval_shape(lambda *arrays: function(*arrays), *shapes)
    return list(found.values())


def bound_to(form: Form) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """What a partial function has taken already."""
    return (form.args, form.keywords) if isinstance(form, partial) else ((), {})


def _call(
    operation: str, forms: Mapping[str, Form], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Call:
    kernel, reference = forms["pallas"], forms["reference"]
    assert callable(reference), "every operation has a contract"
    given = arguments, options, bound_to(kernel), bound_to(reference)
    arguments, options, of_kernel, of_reference = _without_arrays(given)
    return Call(
        operation,
        _bind(kernel, *of_kernel),
        _bind(reference, *of_reference),
        arguments,
        options,
    )


def _bind(form: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    return partial(form.func, *arguments, **options) if isinstance(form, partial) else form


def _without_arrays(tree: Any) -> Any:
    """The same with a shape in place of each array, one for one."""
    leaves, structure = jax.tree.flatten(tree)
    shapes: dict[int, jax.ShapeDtypeStruct] = dict(_shapes(leaves))
    return jax.tree.unflatten(structure, [shapes.get(id(leaf), leaf) for leaf in leaves])


def _shapes(leaves: list[Any]) -> Iterator[tuple[int, jax.ShapeDtypeStruct]]:
    for leaf in leaves:
        if isinstance(leaf, jax.Array | np.ndarray):
            yield id(leaf), jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
