"""Check of a kernel's result against its reference on the timed device."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.cases.case import Case
from pallas_kernels.self_check.errors import difference, read_arrays


def compile_contract(case: Case, shapes: tuple[Any, ...]) -> Callable[..., Any]:
    """Compile the reference for such arguments, bfloat16 as float32, in full precision."""
    wide = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, _wide(x.dtype)), shapes)
    with jax.default_matmul_precision("highest"):
        program = jax.jit(lambda *a: case.reference(*a)).lower(*wide).compile()
    return lambda *arguments: program(*jax.tree.map(lambda x: x.astype(_wide(x.dtype)), arguments))


def largest_error(got: Any, wanted: Any) -> float:
    """Return the largest difference from the reference, over the results that are read."""
    return max(
        difference(*pair) for pair in zip(read_arrays(got), read_arrays(wanted), strict=True)
    )


def _wide(dtype: Any) -> Any:
    return jnp.float32 if dtype == jnp.bfloat16 else dtype
