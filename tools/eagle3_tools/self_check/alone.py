"""A recorded call as two functions of the same arrays: the kernel and its reference."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from eagle3_tools.self_check.calls import Call
from eagle3_tools.self_check.examples import Examples
from pallas_kernels.grouped_matmul.activations import activations
from pallas_kernels.route.choice import Asked, Routes

PRODUCTS = ("matmul", "joint_matmul", "gated_matmul", "grouped_mlp", "logits_argmax")
"""Operations whose matrices after the first argument are weights."""
BLOCK = 64
"""Tokens at a time in the reference of a mixture, which gathers each token's expert matrices."""
ITEMS = 3
"""Images in one array."""


def stand_alone(call: Call) -> tuple[Callable[..., Any], Callable[..., Any], list[Any]]:
    """Return kernel and reference of a call that has a kernel, and the arrays that both take."""
    examples, weights = Examples(), call.operation in PRODUCTS
    first = examples.of(call.arguments[:1])
    rest = examples.of(call.arguments[1:], weights=weights)
    arguments = (*first, *rest)
    if meant := MEANINGS.get(call.operation):
        arguments = meant(examples, call, arguments)
    given = arguments, examples.of(call.options, weights=weights)
    leaves, structure = jax.tree.flatten(given)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]

    def called(form: Any, *arrays: Any) -> Any:
        """Call `form` with its recorded arguments, with `arrays` in place of shapes."""
        left = iter(arrays)
        filled = [next(left) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        arguments, options = jax.tree.unflatten(structure, filled)
        return form(*arguments, **options)

    wrap = CONTRACTS.get(call.operation)
    contract = wrap(call.reference) if wrap else call.reference
    return partial(called, call.kernel), partial(called, contract), arrays


def _in_pools(examples: Examples, call: Call, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Draw distinct pool places for the rows."""
    rows, *rest = arguments
    pages, offsets = examples.places(call.arguments[0].pages, call.arguments[1])
    return rows._replace(pages=pages, offsets=offsets), *rest


def _chosen_experts(examples: Examples, call: Call, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    x, stacks, _, weights = arguments
    ids = examples.experts(call.arguments[2], stacks.gate.shape[0])
    return x, stacks, ids, jnp.abs(weights)


def _whole_vocabulary(
    examples: Examples, call: Call, arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Number the columns from 0, as on one device."""
    x, head, options, ids, _ = arguments
    return x, head, options, jnp.arange(ids.size, dtype=ids.dtype), None


def _in_items(examples: Examples, call: Call, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Divide the rows into several consecutive images."""
    q, k, v, items, scale = arguments
    return q, k, v, (jnp.arange(items.size) * ITEMS // items.size).astype(items.dtype), scale


MEANINGS: Mapping[str, Callable[[Examples, Call, tuple[Any, ...]], tuple[Any, ...]]] = {
    "cache_latents": _in_pools,
    "cache_heads": _in_pools,
    "grouped_mlp": _chosen_experts,
    "item_attention": _in_items,
    "logits_argmax": _whole_vocabulary,
}
"""Functions that give meaningful values to the integer arguments of an operation."""


def _with_rows(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Extend a router's reference by the rows that the experts would quantise."""

    def contract(asked: Asked) -> Routes:
        chosen = reference(asked)
        return chosen._replace(rows=None if asked.x is None else activations(asked.x, asked.format))

    return contract


def _in_blocks(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Run a mixture's reference on blocks of tokens, whose results are independent."""

    def contract(x: Array, stacks: Any, ids: Array, weights: Array, **options: Any) -> Array:
        def of_token(token: tuple[Array, ...]) -> Array:
            x, ids, weights = (part[None] for part in token)
            return reference(x, stacks, ids, weights, **options)[0]

        return jax.lax.map(of_token, (x, ids, weights), batch_size=BLOCK)

    return contract


CONTRACTS = {"route": _with_rows, "grouped_mlp": _in_blocks}
"""Wrappers of references that need more than a plain call."""
