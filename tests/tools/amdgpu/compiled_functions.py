"""Functions that tests compile, by name, so that other processes can compile them too."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from eagle3_tools.amdgpu.program.compiled import Source

TABLE = np.arange(3000, dtype=np.float32).reshape(30, 100)
"""A constant too large to be embedded in a kernel's code."""


def source(key: tuple[str, str]) -> Source:
    """Return the source of (name, architecture); raise KeyError for another name."""
    name, arch = key
    return {"control_flow": _control_flow, "doubled": _doubled}[name](arch)


def control_flow(
    x: Array, w: Array, unused: Array, count: Array, order: Array
) -> tuple[Array, ...]:
    """A library product, a loop of dynamic length, a branch, sorts, a table and a scan."""

    def more(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        step, y = carry
        return step + 1, 0.1 * jnp.tanh(y) * y.sum(-1, keepdims=True)

    start = jnp.int32(0), x @ w
    _, y = jax.lax.while_loop(lambda carry: carry[0] < count, more, start)
    z = jax.lax.cond(count > 3, lambda y: jnp.sort(y, axis=1), lambda y: 2 * y[::-1], y)
    places = jnp.arange(len(order), dtype=jnp.int32)
    keys, places = jax.lax.sort((order, places), num_keys=1)
    row = jnp.asarray(TABLE)[count]
    return y, z, order.at[3].set(count), keys, places, row, jnp.cumsum(y, axis=0)


def _control_flow(arch: str) -> Source:
    shape = jax.ShapeDtypeStruct
    arrays = shape((64, 128), jnp.float32), shape((128, 96), jnp.float32), shape((3,), jnp.int32)
    numbers = shape((), jnp.int32), shape((50,), jnp.int32)
    return Source(arch, control_flow, (*arrays, *numbers), donated=(4,))


def _doubled(arch: str) -> Source:
    return Source(arch, lambda x: 2 * x, (jax.ShapeDtypeStruct((1000,), jnp.float32),))
