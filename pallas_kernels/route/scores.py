"""Choice of experts and their weights inside a kernel, and the launch of such a kernel.

A token's scores are cut into consecutive slices of 64. With one wave per token, each lane has one
score of every slice, so that a row's best is found within a wave, without local memory.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.grouped_matmul.activations import row_kernel
from pallas_kernels.route.choice import Asked, RouterOptions
from pallas_kernels.row_kernel import row_block
from pallas_kernels.tile_product import Operand
from pallas_kernels.triton import launch, load, store, whole

LANES = 64
TAKEN = jnp.iinfo(jnp.int32).min
"""Rank of an expert that was chosen or does not exist: below that of every score."""


class Chosen(NamedTuple):
    """Chosen experts of tokens. Choices are padded to a power of two, at least 64.

    token: [tokens, 1]. nth: [1, choices]. ids [tokens, choices]: best first. inside: mask of the
    choices that exist. left: ranks of the experts [tokens, 64] by slice, TAKEN for chosen or
    missing ones.
    """

    token: Array
    nth: Array
    ids: Array
    inside: Array
    left: list[Array]

    def first_choices(self, count: int) -> Array:
        """Return the first `count` (a power of two) ids, [tokens, count]."""
        only = jnp.where(self.nth < count, self.ids, 0)
        return jnp.sum(only.reshape(self.token.size, -1, count), axis=1)


def slices(experts: int) -> list[Array]:
    """Return the expert ids [1, 64] of each slice; some of the last may not exist."""
    lane = jnp.arange(LANES)[None, :]
    return [lane + first for first in range(0, experts, LANES)]


def choose_experts(logits: Any, bias: Any, token: Array, top_k: int) -> Chosen:
    """Choose the experts of every token; results of tokens that do not exist are meaningless."""
    tokens, experts = logits.shape
    nth = jnp.arange(max(LANES, pl.next_power_of_2(top_k)))[None, :]
    ids = slices(experts)

    def add(n: Array, state: tuple[list[Array], Array]) -> tuple[list[Array], Array]:
        left, chosen = state
        best = jnp.max(reduce(jnp.maximum, left), axis=1)[:, None]
        # Take the lower of equals.
        pairs = list(zip(left, ids, strict=True))
        equal = (jnp.where(rank == best, expert, experts) for rank, expert in pairs)
        first = jnp.min(reduce(jnp.minimum, equal), axis=1)[:, None]
        left = [jnp.where(expert == first, TAKEN, rank) for rank, expert in pairs]
        return left, jnp.where(nth == n, first, chosen)

    ranks = [_rank(logits, bias, token, expert) for expert in ids]
    none = jnp.zeros((token.size, nth.size), jnp.int32)
    left, chosen = jax.lax.fori_loop(0, top_k, add, (ranks, none))
    return Chosen(token, nth, chosen, (token < tokens) & (nth < top_k), left)


def _rank(logits: Any, bias: Any, token: Array, expert: Array) -> Array:
    """Return score + bias as an integer of the same order, whose maximum ignores NaN rules."""
    tokens, experts = logits.shape
    exists = expert < experts
    score = jax.nn.sigmoid(
        load(logits.at[token, expert], mask=(token < tokens) & exists, other=0.0)
    )
    score += load(bias.at[expert], mask=exists, other=0.0)
    # NaN counts as the lowest score, so that every choice is an existing expert.
    lowest = float(jnp.finfo(jnp.float32).min)
    bits = jax.lax.bitcast_convert_type(jnp.where(score > lowest, score, lowest), jnp.int32)
    # Among negative numbers, larger magnitude bits mean smaller values. -0 does not occur: a score
    # is at least 0.
    return jnp.where(exists, jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits), TAKEN)


def load_first(first: Any) -> Array | int:
    """Return the first expert of this device."""
    return 0 if first is None else load(first.at[jnp.arange(1)])


def store_choice(
    ids: Any, weights: Any, logits: Any, chosen: Chosen, options: RouterOptions, first: Array | int
) -> None:
    """Store the chosen ids, counted from this device's first expert, and their weights."""
    # Load the logits again instead of keeping those of all experts.
    found = load(logits.at[chosen.token, chosen.ids], mask=chosen.inside, other=0.0)
    scores = jnp.where(chosen.inside, jax.nn.sigmoid(found), 0)
    total = jnp.sum(scores, axis=1)[:, None] + 1e-20 if options.normalise else 1.0
    store(ids.at[chosen.token, chosen.nth], chosen.ids - first, mask=chosen.inside)
    store(
        weights.at[chosen.token, chosen.nth], scores / total * options.scaling, mask=chosen.inside
    )


def launch_with_rows(
    body: Callable[[Array, Any, Any], None],
    asked: Asked,
    out_shape: Any,
    *,
    programs: int,
    num_warps: int,
) -> tuple[Any, Operand | None]:
    """Launch `programs` programs of `body`, and one program for each row of x that quantises it.
    body(program, inputs, outputs) takes refs of (logits, bias, first expert) and of out_shape.
    Returns the outputs and the quantised rows, None if the experts multiply rows as they are."""
    arrays = asked.logits, asked.bias, asked.held.first
    quantiser = None if asked.x is None else row_kernel(asked.x, asked.format)
    x, quantised = (None, None) if quantiser is None else (asked.x, Operand(*quantiser.out))
    own_row = partial(row_block, row=lambda program: jnp.maximum(program - programs, 0))

    def kernel(arrays: Any, x: Any, out: Any, rows: Any) -> None:
        """Kernel body: route tokens or quantise a row. Grid: programs of the body, then one for
        each row of x. Blocks: arrays and out whole, x and rows a row. Limit: the body's registers.
        Units: those of body and `row_kernel`."""
        program = pl.program_id(0)
        if quantiser is None:
            body(program, arrays, out)
            return
        jax.lax.cond(
            program < programs,
            lambda: body(program, arrays, out),
            partial(quantiser.body, x, *jax.tree.leaves(rows)),
        )

    return launch(
        kernel,
        name="route",
        grid=(programs + (0 if x is None else len(x)),),
        in_specs=(jax.tree.map(whole, arrays), jax.tree.map(own_row, x)),
        out_specs=(jax.tree.map(whole, out_shape), jax.tree.map(own_row, quantised)),
        out_shape=(out_shape, quantised),
        num_warps=num_warps,
    )(arrays, x)
